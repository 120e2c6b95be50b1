//! The operation logs of the folders of `vmio run --under`.

use std::path::Path;

use anyhow::{Context, bail};
use operation_log::{Log, LogOptions, LogState, recover};

/// Replays the logs of programs that died in strict mode.
pub(super) fn replay(folder: &Path) -> anyhow::Result<()> {
    let recovery =
        recover(folder).with_context(|| format!("cannot look for operation logs in {}", folder.display()))?;
    for log in recovery.logs {
        if let LogState::NotReplayed(error) = log.state {
            let advice = format!("cannot replay {}; see `vmio recover {}`", log.path.display(), folder.display());
            return Err(error).context(advice);
        }
    }
    Ok(())
}

/// Creates a log once, to fail before the program starts and not at its first write.
pub(super) fn try_one(folder: &Path, bytes: u64) -> anyhow::Result<()> {
    let options = LogOptions::new().capacity_bytes(bytes);
    let created = Log::create(folder, options).and_then(Log::close);
    if let Err(error) = created {
        let advice = "--mode strict requires the right to create a folder there, and disk space for --log-size";
        bail!(
            anyhow::Error::new(error)
                .context(format!("cannot create an operation log in {}: {advice}", folder.display()))
        );
    }
    Ok(())
}
