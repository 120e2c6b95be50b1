//! The machine of the tests' process.

use vmio_ring0::{Error, Level, Machine};

/// A machine at ring 0, or at ring 3 where the host emulates ring 0. Says why there is none. In the lab, where `VMIO_TEST_RING0` is set, nothing
/// but ring 0 will do.
pub fn machine() -> Option<&'static Machine> {
    let is_required = std::env::var_os("VMIO_TEST_RING0").is_some();
    let started = match Machine::start(Level::Ring0) {
        Err(Error::Ring0Emulated | Error::OtherLevel { .. }) if !is_required => Machine::start(Level::Ring3),
        started => started,
    };
    match started {
        Ok(machine) => Some(machine),
        Err(error) if is_required => panic!("{error}: {:?}", std::error::Error::source(&error)),
        Err(error) => {
            test_depth::skipped(error);
            None
        }
    }
}
