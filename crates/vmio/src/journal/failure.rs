//! Errors of a journal's device.

use std::io;

use crate::backing::Backing;
use crate::error::Error;

/// The error of an operation on a journal's device, "writing" for example.
pub(crate) fn failed_at(device: &dyn Backing, operation: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Journal { journal: device.describe(), operation, source }
}
