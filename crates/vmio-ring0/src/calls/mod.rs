//! System calls that get pointers to managed memory, which the host does not have at those addresses.
//!
//! `memory` says what memory a call uses, by the `table`. `held` has the program keep the pages resident and exposed meanwhile. `waits` says which
//! calls signals must be able to interrupt.

pub(crate) mod held;
pub(crate) mod memory;
mod table;
pub(crate) mod waits;

pub use held::Holder;
