//! Measurements of the kernel module in a guest: `kernel/bench`.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result};

use crate::guest::Guest;
use crate::lab::{lab_folder, run, workspace};
use crate::patched::Patch;
use crate::{Accelerator, Machine, breakdown, module};

/// What to find out.
#[derive(clap::Args, Clone, Copy)]
#[group(multiple = false)]
pub(crate) struct Question {
    /// Where the instructions of a touch go, in a guest of one core whose clock counts them
    #[arg(long)]
    breakdown: bool,
    /// What each part of the module brings: without it, by the patches in kernel/bench/without
    #[arg(long)]
    steps: bool,
    /// What one TLB flush for pages of several spans brings (the module's parameter batch_flushes)
    #[arg(long)]
    flushes: bool,
    /// What each core adds, through the module and through Linux mmap; medians of several rounds
    #[arg(long)]
    scaling: bool,
}

/// Builds the module and its benchmark, and runs that in a guest.
pub(crate) fn run_in_guest(machine: Machine, question: Question) -> Result<u8> {
    let module = module::build(machine.kernel)?;
    let (mut machine, mut arguments, mut name) = (machine, Vec::new(), "suite");
    if question.breakdown {
        name = "breakdown";
        machine = Machine { cores: 1, accelerator: Accelerator::Counted, ..machine };
    } else if question.flushes {
        name = "flushes";
    } else if question.scaling {
        name = "scaling";
    } else if question.steps {
        name = "steps";
        for patch in Patch::all("bench/without")? {
            let built = patch.build(machine.kernel)?;
            arguments.extend([patch.name().to_owned(), built.to_string_lossy().into_owned()]);
        }
    }
    // As it is used from C.
    run(Command::new(env!("CARGO")).args(["build", "--release", "--package", "vmio-c"]).current_dir(workspace()))?;
    let library = lab_folder()?.parent().context("the lab is in no folder")?.join("release/libvmio_c.a");
    let include = workspace().join("crates/vmio-c/include");
    let libraries = [OsStr::new("-I"), include.as_os_str(), library.as_os_str(), OsStr::new("-lm")];
    let script = module::script("bench", name, &[("module", &module)], &arguments, &libraries)?;
    let guest = Guest::new(machine, None)?;
    if question.breakdown { breakdown::of_kernel(guest, &script) } else { guest.run(&script) }
}
