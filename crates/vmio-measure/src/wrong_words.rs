//! The end of a measurement that has read wrong words.

use anyhow::bail;

/// Fails the command for wrong data. Call it after everything was reported.
pub fn fail_on_verify_errors(errors: u64) -> anyhow::Result<()> {
    if errors > 0 {
        bail!("{errors} words were not what they should be: do not trust this machine's data to vmio, and report this");
    }
    Ok(())
}
