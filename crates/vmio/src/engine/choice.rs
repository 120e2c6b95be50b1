//! The choice of a cache's engine.

use std::sync::Arc;

#[cfg(target_arch = "x86_64")]
use crate::engine::Ring0Engine;
use crate::engine::{AnonymousFrames, FaultCalls, FaultEngine, Frames, ReaderThreadEngine, SigbusEngine};
use crate::error::{Error, Result};
use crate::options::Engine;
use crate::probe;
use crate::sys::kernel::KernelFeatures;
use crate::sys::userfaultfd::{StoreTracking, Userfaultfd};

impl Engine {
    /// Starts the chosen engine, SIGBUS by default, with its frames. The cache uses `capacity_pages` of them, more if it grows.
    pub(crate) fn start(
        self,
        calls: FaultCalls,
        readers: usize,
        features: KernelFeatures,
        capacity_pages: u32,
    ) -> Result<(Box<dyn FaultEngine>, Box<dyn Frames>)> {
        let anonymous = |userfaultfd| Box::new(AnonymousFrames::new(userfaultfd, features));
        match self {
            Engine::Auto | Engine::Sigbus | Engine::Managed | Engine::Kernel => {
                let engine =
                    SigbusEngine::new(calls.resolve, features).map_err(|error| probe::explain_userfaultfd(&error))?;
                let userfaultfd = engine.userfaultfd();
                Ok((Box::new(engine), anonymous(userfaultfd)))
            }
            #[cfg(target_arch = "x86_64")]
            Engine::Ring0 => {
                let prepared = (calls.for_system_calls.prepare)();
                prepared.map_err(Error::system("reserving memory for what system calls hold"))?;
                let (engine, frames) = Ring0Engine::start(calls, capacity_pages).map_err(crate::ring0::explain)?;
                Ok((Box::new(engine), Box::new(frames)))
            }
            #[cfg(not(target_arch = "x86_64"))]
            Engine::Ring0 => {
                let _ = capacity_pages;
                Err(Error::NoRing0 { reason: "it needs x86-64".to_owned() })
            }
            Engine::ReaderThread => {
                let userfaultfd = Userfaultfd::open_for_messages(StoreTracking::Trap);
                let userfaultfd = Arc::new(userfaultfd.map_err(|why| probe::explain_no_messages(&why))?);
                let engine = ReaderThreadEngine::start(Arc::clone(&userfaultfd), calls, readers, features)
                    .map_err(Error::system("starting the reader threads of the cache"))?;
                Ok((Box::new(engine), anonymous(userfaultfd)))
            }
        }
    }
}
