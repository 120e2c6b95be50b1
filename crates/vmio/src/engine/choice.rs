//! The choice of a cache's engine.

use std::sync::Arc;

use crate::engine::{FaultCalls, FaultEngine, ReaderThreadEngine, SigbusEngine};
use crate::error::{Error, Result};
use crate::options::Engine;
use crate::probe;
use crate::sys::kernel::KernelFeatures;
use crate::sys::userfaultfd::{StoreTracking, Userfaultfd};

impl Engine {
    /// Starts the chosen userfaultfd engine, SIGBUS by default. The returned userfaultfd is for the frames.
    pub(crate) fn start(
        self,
        calls: FaultCalls,
        readers: usize,
        features: KernelFeatures,
    ) -> Result<(Box<dyn FaultEngine>, Arc<Userfaultfd>)> {
        match self {
            Engine::Auto | Engine::Sigbus | Engine::Managed | Engine::Kernel => {
                let engine =
                    SigbusEngine::new(calls.resolve, features).map_err(|error| probe::explain_userfaultfd(&error))?;
                let userfaultfd = engine.userfaultfd();
                Ok((Box::new(engine), userfaultfd))
            }
            Engine::ReaderThread => {
                let userfaultfd = Userfaultfd::open_for_messages(StoreTracking::Trap);
                let userfaultfd = Arc::new(userfaultfd.map_err(|why| probe::explain_no_messages(&why))?);
                let engine = ReaderThreadEngine::start(Arc::clone(&userfaultfd), calls, readers, features)
                    .map_err(Error::system("starting the reader threads of the cache"))?;
                Ok((Box::new(engine), userfaultfd))
            }
        }
    }
}
