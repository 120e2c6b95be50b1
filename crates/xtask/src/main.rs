//! `cargo xtask`: chores of the repository that are more than a script.

mod apt;
mod breakdown;
mod build_root;
mod debug_kernel;
mod guest;
mod initramfs;
mod kernel;
mod lab;
mod module;
mod module_bench;
mod mutants;
mod patched;
mod programs;
mod suite;
mod tidy;
mod ubuntu;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::guest::Guest;
use crate::kernel::{Kernel, Series};
use crate::module_bench::Question;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the vmio repository")]
struct Xtask {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check the project lints: rules that no compiler checks
    Tidy {
        /// How many of the longest files and functions it names
        #[arg(long, default_value_t = 5, value_name = "N")]
        longest: usize,
        /// How many of the worst sentences it names
        #[arg(long, default_value_t = 20, value_name = "N")]
        sentences: usize,
        /// Instead, list each sentence that needs another look in these files and folders
        #[arg(long, value_name = "PATH", num_args = 1..)]
        prose: Vec<String>,
    },
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
    /// Fetch the programs that guests need and hosts lack, if they are not there yet, and say where they are
    VmPrograms,
    /// Use each thing that a guest has beside its disks once
    VmLab {
        #[command(flatten)]
        machine: Machine,
        /// Only these programs of tests/vm/checks
        checks: Vec<String>,
    },
    /// Count the instructions of a read each way to a device, on one core
    VmInstructions {
        #[command(flatten)]
        machine: Machine,
    },
    /// Run the library's own tests on another kernel
    VmTests {
        #[command(flatten)]
        machine: Machine,
        /// Load the kernel module, and run what its engine promises
        #[arg(long)]
        module: bool,
        /// Only these test binaries, though the suite may leave them out
        tests: Vec<String>,
    },
    /// Build the kernel module, without a warning
    Module {
        /// For these kernels
        #[arg(value_enum, default_values_t = [
            Series::Linux6_1, Series::Linux6_8, Series::Linux6_11, Series::Linux6_12, Series::Linux6_14, Series::Linux6_17, Series::Newest
        ])]
        kernels: Vec<Series>,
        /// Have sparse check it, too
        #[arg(long)]
        sparse: bool,
    },
    /// Run the kernel module's tests
    ModuleTests {
        #[command(flatten)]
        machine: Machine,
        /// How often it is loaded and unloaded afterwards; each takes a second or so
        #[arg(long, default_value_t = 50)]
        rounds: u32,
        /// Only these; `!NAME` leaves one out
        tests: Vec<String>,
    },
    /// Measure the kernel module beside Linux mmap and the library; with `--accelerator counted --cores 1` in instructions
    ModuleBench {
        #[command(flatten)]
        machine: Machine,
        #[command(flatten)]
        question: Question,
    },
    /// See the kernel module's tests fail for mistakes made in it on purpose (kernel/tests/mutants); with `--kernel 6.12-debug`
    ModuleMutants {
        #[command(flatten)]
        machine: Machine,
        /// Only these
        mutants: Vec<String>,
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
    /// Nodes of memory, which the cores and the memory are dealt to
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// What QEMU runs it with; KVM is faster where the host can
    #[arg(long, value_enum, default_value_t = Accelerator::Tcg)]
    accelerator: Accelerator,
    /// Have its kernel look for stores to memory that is not, or no longer, allocated: guarded samples (KFENCE), red zones and
    /// poison around and in objects, poison in free pages
    #[arg(long)]
    memory_checks: bool,
    /// End it after so many seconds
    #[arg(long, default_value_t = 600, value_name = "S")]
    timeout: u64,
}

#[derive(ValueEnum, Clone, Copy)]
enum Accelerator {
    Tcg,
    /// TCG, and the clock goes on by a nanosecond for each instruction
    Counted,
    Kvm,
}

impl Accelerator {
    /// What QEMU is told.
    fn options(self) -> &'static [&'static str] {
        match self {
            Accelerator::Tcg => &["-accel", "tcg,thread=multi"],
            Accelerator::Counted => &["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"],
            Accelerator::Kvm => &["-accel", "kvm"],
        }
    }

    /// The same of the processor. Where instructions are counted it lacks fast `rep stosb` and `rep movsb`, by which Linux would
    /// clear and copy pages: each byte would count as an instruction, and whoever does more of that would look the dearer for it.
    fn processor(self) -> &'static str {
        match self {
            Accelerator::Counted => "max,la57=off,erms=off,fsrm=off",
            Accelerator::Tcg | Accelerator::Kvm => "max,la57=off",
        }
    }
}

fn main() -> Result<ExitCode> {
    let status = match Xtask::parse().chore {
        Chore::Tidy { longest, sentences, prose } => {
            let root = lab::workspace().canonicalize()?;
            if prose.is_empty() {
                u8::from(!tidy::tidy(&root, longest, sentences)?)
            } else {
                tidy::list_prose(&root, &prose)?;
                0
            }
        }
        Chore::Vm { machine, out, command } => {
            let line = shlex::try_join(command.iter().map(String::as_str)).context("a NUL in the command")?;
            Guest::new(machine, out)?.run(&line)?
        }
        Chore::VmKernel { machine } => {
            println!("{}", Kernel::of(machine.kernel)?.release);
            0
        }
        Chore::VmPrograms => {
            println!("{}", programs::fetched()?.display());
            0
        }
        Chore::VmLab { machine, checks } => suite::run_lab(machine, &checks)?,
        Chore::VmInstructions { machine } => suite::count_instructions(machine)?,
        Chore::VmTests { machine, module, tests } => suite::run(machine, module, &tests)?,
        Chore::Module { kernels, sparse } => {
            for kernel in kernels {
                let module = if sparse { module::check(kernel)? } else { module::build(kernel)? };
                println!("{}", module.display());
            }
            0
        }
        Chore::ModuleTests { machine, rounds, tests } => module::test(machine, rounds, &tests)?,
        Chore::ModuleBench { machine, question } => module_bench::run_in_guest(machine, question)?,
        Chore::ModuleMutants { machine, mutants } => mutants::run(machine, &mutants)?,
    };
    Ok(ExitCode::from(status))
}
