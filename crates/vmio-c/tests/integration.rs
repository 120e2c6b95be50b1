//! The tests of the library for C, one program.

mod commits;
mod header;
mod library;
mod programs;
mod support;
