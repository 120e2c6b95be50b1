//! `cargo xtask`: chores of the repository that are more than a script.

mod guest;
mod initramfs;
mod kernel;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::guest::Guest;
use crate::kernel::{Kernel, Series};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the vmio repository")]
struct Xtask {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run a command on another kernel, under QEMU; its exit status is this one's
    Vm {
        #[command(flatten)]
        machine: Machine,
        /// Keep the folder that is $OUT inside: what the command writes there, and what the kernel said
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// What to run, in the current directory; the host's files are there, but for reading only
        #[arg(required = true, last = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Fetch a kernel, if it is not there yet, and say which it is
    VmKernel {
        #[command(flatten)]
        machine: Machine,
    },
    /// Run the library's own tests on another kernel
    VmTests {
        #[command(flatten)]
        machine: Machine,
        /// Only these test binaries, though the suite may leave them out
        tests: Vec<String>,
    },
}

/// The machine to boot.
#[derive(Args, Clone, Copy)]
struct Machine {
    /// The kernel
    #[arg(long, value_enum, default_value_t = Series::Linux6_1)]
    kernel: Series,
    /// Virtual cores
    #[arg(long, default_value_t = 2)]
    cores: u32,
    /// Memory in MiB
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    memory: u32,
    /// What QEMU runs it with; KVM is faster where the host can
    #[arg(long, value_enum, default_value_t = Accelerator::Tcg)]
    accelerator: Accelerator,
    /// End it after so many seconds
    #[arg(long, default_value_t = 600, value_name = "S")]
    timeout: u64,
}

#[derive(ValueEnum, Clone, Copy)]
enum Accelerator {
    Tcg,
    Kvm,
}

impl Accelerator {
    /// What QEMU is told.
    fn option(self) -> &'static str {
        match self {
            Accelerator::Tcg => "tcg,thread=multi",
            Accelerator::Kvm => "kvm",
        }
    }
}

fn main() -> Result<ExitCode> {
    let status = match Xtask::parse().chore {
        Chore::Vm { machine, out, command } => {
            let line = shlex::try_join(command.iter().map(String::as_str)).context("a NUL in the command")?;
            Guest::new(machine, out)?.run(&line)?
        }
        Chore::VmKernel { machine } => {
            println!("{}", Kernel::of(machine.kernel)?.release);
            0
        }
        Chore::VmTests { machine, tests } => suite::run(machine, &tests)?,
    };
    Ok(ExitCode::from(status))
}
