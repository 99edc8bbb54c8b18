//! Arguments that do not raise: what is not of the expected type or width is None, and the kernel declines.

use pyo3::prelude::*;
use pyo3::types::PyInt;
use std::convert::Infallible;

/// An int of 64 bits, or None for any other object.
pub struct Int(pub Option<i64>);

impl<'a, 'py> FromPyObject<'a, 'py> for Int {
    type Error = Infallible;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Int(if object.is_exact_instance_of::<PyInt>() { object.extract().ok() } else { None }))
    }
}
