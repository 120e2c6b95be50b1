//! The integration tests of the operation log, one program.

mod concurrent;
mod corners;
mod kill;
