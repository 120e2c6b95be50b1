//! The integration tests of the operation log, one program.

mod concurrent;
mod corners;
mod direct;
mod kill;
