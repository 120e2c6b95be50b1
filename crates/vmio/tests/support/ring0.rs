//! Caches for the tests of the ring 0 engine.

use vmio::{Cache, CacheBuilder, Engine, Error};

use super::{cache_of, engine};

/// A cache of that many pages on the ring 0 engine: at ring 3 where the host emulates ring 0. Says why there is none. In the lab, where
/// VMIO_TEST_ENGINE is `ring0`, nothing but ring 0 will do.
pub fn cache(pages: u64) -> Option<Cache> {
    cache_with(pages, |cache| cache)
}

/// The same with further options.
pub fn cache_with(pages: u64, options: impl Fn(CacheBuilder) -> CacheBuilder) -> Option<Cache> {
    let build = || options(cache_of(pages).engine(Engine::Ring0)).build();
    let built = match build() {
        Err(Error::NoRing0 { reason }) if reason.contains("emulates ring 0") && engine() != Engine::Ring0 => {
            // SAFETY: the test has started no thread yet that reads the environment.
            unsafe { std::env::set_var("VMIO_RING0_LEVEL", "3") };
            build()
        }
        built => built,
    };
    match built {
        Ok(cache) => Some(cache),
        Err(error @ Error::NoRing0 { .. }) if engine() != Engine::Ring0 => {
            test_depth::skipped(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}
