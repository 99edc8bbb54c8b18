//! A dataclass from a map of header fields (protocol/lockstep/protocol/fields.py).

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

/// One field of a dataclass.
struct Field {
    attribute: Py<PyString>,
    /// Its name on the wire.
    name: Py<PyString>,
    /// The exact type of its values; None if they have to be converted.
    kind: Option<Py<PyType>>,
    /// Its value if it is missing; None if it is required.
    default: Option<Py<PyAny>>,
}

/// A field as Python passes it: attribute, name on the wire, type or None, whether it is required, default.
type Row = (Py<PyString>, Py<PyString>, Option<Py<PyType>>, bool, Py<PyAny>);

/// How instances of a frozen dataclass are made from maps.
#[pyclass(frozen)]
pub struct FieldPlan {
    fields: Vec<Field>,
    cls: Py<PyType>,
    /// A class with the same slots that is not frozen: an instance of it becomes one of `cls`.
    draft: Py<PyType>,
}

#[pymethods]
impl FieldPlan {
    #[new]
    fn new(cls: Py<PyType>, draft: Py<PyType>, fields: Vec<Row>) -> Self {
        let fields = fields
            .into_iter()
            .map(|(attribute, name, kind, required, default)| Field { attribute, name, kind, default: (!required).then_some(default) })
            .collect();
        FieldPlan { fields, cls, draft }
    }

    /// Return the instance, or None to decline: a value has to be converted or has another type, or a required one is missing.
    fn read<'py>(&self, py: Python<'py>, plain: &Bound<'py, PyDict>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let made = self.draft.bind(py).call0()?;
        for field in &self.fields {
            match plain.get_item(&field.name)? {
                Some(value) => match &field.kind {
                    Some(kind) if value.get_type().is(kind) => made.setattr(&field.attribute, value)?,
                    _ => return Ok(None),
                },
                None => match &field.default {
                    Some(default) => made.setattr(&field.attribute, default)?,
                    None => return Ok(None),
                },
            }
        }
        made.setattr(intern!(py, "__class__"), &self.cls)?;
        Ok(Some(made))
    }
}
