//! The operation logs of the folders that a program is run for.

use std::path::Path;

use anyhow::{Context, bail};
use operation_log::{Log, LogOptions, LogState, recover};

/// Finishes what programs that died in strict mode have left.
pub(super) fn replay(folder: &Path) -> anyhow::Result<()> {
    let recovery =
        recover(folder).with_context(|| format!("cannot look for operation logs in {}", folder.display()))?;
    for log in recovery.logs {
        if let LogState::Left(error) = log.state {
            let advice =
                format!("{} cannot be replayed; vmio recover {} says more", log.path.display(), folder.display());
            return Err(error).context(advice);
        }
    }
    Ok(())
}

/// What the program could only say by a write that fails is better said before: that no log can be had.
pub(super) fn try_one(folder: &Path, bytes: u64) -> anyhow::Result<()> {
    let options = LogOptions::new().capacity_bytes(bytes);
    let created = Log::create(folder, options).and_then(Log::close);
    if let Err(error) = created {
        let advice = "--mode strict needs an operation log there: the right to make a folder, and room for --log-size";
        bail!(anyhow::Error::new(error).context(format!("no operation log in {}: {advice}", folder.display())));
    }
    Ok(())
}
