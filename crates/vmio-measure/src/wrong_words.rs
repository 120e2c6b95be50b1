//! What a measurement ends with that has read something wrong.

use anyhow::bail;

/// Wrong data makes the command fail, after everything was reported.
pub fn fail_on_verify_errors(errors: u64) -> anyhow::Result<()> {
    if errors > 0 {
        bail!("{errors} words were not what they should be: do not trust this machine's data to vmio, and report this");
    }
    Ok(())
}
