//! System calls that get pointers to managed memory, which the host does not have at those addresses.
//!
//! `memory` says what memory a call uses, by the `table`: which arguments are `pointers`, and what they lead to. `operations` has the calls that do
//! several things, `layouts` the structures with pointers of their own, `without_pointers` the rest of Linux's calls. `held` has the program
//! keep the pages resident and exposed meanwhile, `parts` makes reads and writes of files piece by piece. `waits` says which calls signals must be able to interrupt.

pub(crate) mod held;
mod layouts;
pub(crate) mod masks;
pub(crate) mod memory;
mod numbers;
mod operations;
mod parts;
mod pointers;
mod table;
pub(crate) mod waits;
mod without_pointers;

pub use held::Holder;
