//! The engine that a run of the suite is about.

use vmio::Engine;

/// The engine that the suite runs over (`scripts/test` runs it once for each); the default one where it is not set.
const ENGINE: &str = "VMIO_TEST_ENGINE";

/// The engine under test: what VMIO_TEST_ENGINE says, or the default.
pub fn engine() -> Engine {
    match std::env::var(ENGINE).as_deref() {
        Err(_) | Ok("") => Engine::Auto,
        Ok("sigbus") => Engine::Sigbus,
        Ok("reader-thread") => Engine::ReaderThread,
        Ok("managed") => Engine::Managed,
        Ok("kernel") => Engine::Kernel,
        Ok("ring0") => Engine::Ring0,
        Ok(other) => panic!("{ENGINE} is {other:?}: there are sigbus, reader-thread, managed, kernel and ring0"),
    }
}
