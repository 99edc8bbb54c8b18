//! Compiled forms of lockstep's loops over records: the extension module `lockstep.protocol._native` (ADR 27).
//!
//! A kernel handles the good case and nothing else. For anything unusual it *declines*: it returns None, has changed nothing, and the caller
//! runs the Python form, which is the law: it decides and has the only copy of every error text. Inside, `?` on an Option declines.

mod arguments;
mod command;
mod decode;
mod encode;
mod entries;
mod fields;
mod frame;
mod msgpack;
mod plan;
mod properties;
mod scan;
mod sequence;

use pyo3::prelude::*;

/// The module. With LOCKSTEP_PURE_PYTHON set it refuses to load, so that every caller runs its Python form.
#[pymodule(gil_used = true)]
mod _native {
    use pyo3::exceptions::PyImportError;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::command::{encode_frame, next_frame};
    #[pymodule_export]
    use super::decode::split_records;
    #[pymodule_export]
    use super::encode::{encode_message, encode_messages};
    #[pymodule_export]
    use super::entries::{check_run, join_entries};
    #[pymodule_export]
    use super::frame::take_frame;
    #[pymodule_export]
    use super::plan::FieldPlan;
    #[pymodule_export]
    use super::scan::scan_run;
    #[pymodule_export]
    use super::sequence::carries_sequence;

    /// Raised when a signature or a meaning changes: native.py refuses a library that was built from other sources.
    #[pymodule_export]
    const INTERFACE: u32 = 4;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        match std::env::var_os("LOCKSTEP_PURE_PYTHON") {
            Some(value) if !value.is_empty() && value != "0" => Err(PyImportError::new_err("LOCKSTEP_PURE_PYTHON is set")),
            _ => Ok(()),
        }
    }
}
