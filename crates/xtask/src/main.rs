//! `cargo xtask`: development tasks that are too large for a script.

mod apt;
mod book;
mod breakdown;
mod build_root;
mod debug_kernel;
mod each;
mod emulator;
mod guest;
mod initramfs;
mod kernel;
mod lab;
mod module;
mod module_bench;
mod mutants;
mod patched;
mod programs;
mod ring0;
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

const EXAMPLES: &str = "\
Examples:
  cargo xtask tidy                                     check the project lints
  cargo xtask vm --kernel 6.12 -- uname -r             run a command on another kernel
  cargo xtask module-tests --kernel 6.12 --rounds 0    test the kernel module in a guest
  cargo xtask vm-tests --kernel 6.1 sigbus             run one file of the library's tests in a guest";

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of the vmio repository", after_help = EXAMPLES)]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check the project lints: rules that no compiler checks
    Tidy {
        /// The number of longest files and functions to list
        #[arg(long, default_value_t = 5, value_name = "N")]
        longest: usize,
        /// How many of the worst sentences it names
        #[arg(long, default_value_t = 20, value_name = "N")]
        sentences: usize,
        /// Instead, list each sentence that needs another look in these files and folders
        #[arg(long, value_name = "PATH", num_args = 1..)]
        prose: Vec<String>,
    },
    /// Run a command on another kernel, under QEMU, and exit with its status
    Vm {
        #[command(flatten)]
        machine: Machine,
        /// Keep the folder $OUT of the guest here: the command's output files and the kernel's log
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print where the instructions went between the marks of a program (tests/vm/qemu/instructions.c), which the command runs without
        /// random addresses; it leaves /proc/kallsyms in $OUT/symbols, and in $OUT/runs a line for each run that says "touches N"
        #[arg(long, value_name = "PROGRAM")]
        count: Option<PathBuf>,
        /// The command, run in the current directory; the guest sees the host's files read-only
        #[arg(required = true, last = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Fetch a kernel if necessary, and print its release
    VmKernel {
        #[command(flatten)]
        machine: Machine,
    },
    /// Fetch the programs that guests need and hosts lack if necessary, and print their folder
    VmPrograms,
    /// Check each device of a guest other than its disks
    VmLab {
        #[command(flatten)]
        machine: Machine,
        /// Run only these programs of tests/vm/checks
        checks: Vec<String>,
    },
    /// Count the instructions of a device read by each method, on one core
    VmInstructions {
        #[command(flatten)]
        machine: Machine,
    },
    /// Run the library's own tests on another kernel
    VmTests {
        #[command(flatten)]
        machine: Machine,
        /// The engine to run them over; the library's own choice by default
        #[arg(long, value_enum)]
        engine: Option<suite::Engine>,
        /// Run only these files of tests, even if the suite leaves them out
        tests: Vec<String>,
    },
    /// Run the tests of the library, the store and `vmio run` over guest mode at ring 0, each in a process of its own: `--kernel 6.12 --timeout 9000`
    VmEach {
        #[command(flatten)]
        machine: Machine,
        /// Stop a test after this number of seconds
        #[arg(long, default_value_t = 120, value_name = "S")]
        limit: u64,
        /// Run only these packages, files of tests, or tests
        tests: Vec<String>,
    },
    /// Run the tests of guest mode at ring 0, in a guest with KVM of its own: `--kernel 6.12`
    VmRing0 {
        #[command(flatten)]
        machine: Machine,
        /// Run only these test binaries
        tests: Vec<String>,
    },
    /// Build the kernel module; a warning is an error
    Module {
        /// Build for these kernels
        #[arg(value_enum, default_values_t = [
            Series::Linux6_1, Series::Linux6_8, Series::Linux6_11, Series::Linux6_12, Series::Linux6_14, Series::Linux6_17, Series::Newest
        ])]
        kernels: Vec<Series>,
        /// Also check it with sparse
        #[arg(long)]
        sparse: bool,
    },
    /// Run the kernel module's tests
    ModuleTests {
        #[command(flatten)]
        machine: Machine,
        /// How often to load and unload the module afterwards, at about a second each
        #[arg(long, default_value_t = 50)]
        rounds: u32,
        /// Run only these tests; `!NAME` leaves one out
        tests: Vec<String>,
    },
    /// Compare the kernel module with Linux mmap and the library; `--accelerator counted --cores 1` counts instructions
    ModuleBench {
        #[command(flatten)]
        machine: Machine,
        #[command(flatten)]
        question: Question,
    },
    /// Check that the kernel module's tests find deliberate bugs (kernel/tests/mutants); needs `--kernel 6.12-debug`
    ModuleMutants {
        #[command(flatten)]
        machine: Machine,
        /// Try only these
        mutants: Vec<String>,
    },
    /// Fill in the pages of the book for mdBook, which runs this as a preprocessor: `make book`
    BookPages {
        /// mdBook's question, such as `supports html`; without one the book comes by standard input
        question: Vec<String>,
    },
    /// Check that the links of the built book lead somewhere
    BookLinks {
        /// The folder of the built book
        built: PathBuf,
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
    /// Size of its NVDIMM in MiB
    #[arg(long, default_value_t = 512, value_name = "MIB", value_parser = clap::value_parser!(u32).range(4..=65536))]
    nvdimm: u32,
    /// NUMA nodes, which share the cores and the memory
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// QEMU's accelerator; KVM is faster if the host has it
    #[arg(long, value_enum, default_value_t = Accelerator::Tcg)]
    accelerator: Accelerator,
    /// Have the guest's kernel check for stores to unallocated memory: KFENCE, red zones and poison of objects, poisoned free pages
    #[arg(long)]
    memory_checks: bool,
    /// Stop the machine after this number of seconds
    #[arg(long, default_value_t = 600, value_name = "S")]
    timeout: u64,
}

impl Machine {
    /// With a core more, for what runs guests of its own: its first core runs none (tests/vm/nested-kvm).
    fn for_nested_guests(self) -> Machine {
        Machine { cores: self.cores + 1, ..self }
    }

    fn nvdimm_bytes(self) -> u64 {
        u64::from(self.nvdimm) << 20
    }
}

#[derive(ValueEnum, Clone, Copy)]
enum Accelerator {
    Tcg,
    /// TCG with a clock that advances by a nanosecond for each instruction
    Counted,
    Kvm,
}

impl Accelerator {
    /// The options for QEMU.
    fn options(self) -> &'static [&'static str] {
        match self {
            Accelerator::Tcg => &["-accel", "tcg,thread=multi"],
            Accelerator::Counted => &["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"],
            Accelerator::Kvm => &["-accel", "kvm"],
        }
    }

    /// The processor for QEMU. Where instructions are counted it lacks fast `rep stosb` and `rep movsb`, by which Linux would clear and copy
    /// pages: each byte would count as an instruction, and code that copies more would look more expensive.
    fn processor(self) -> &'static str {
        match self {
            Accelerator::Counted => "max,la57=off,erms=off,fsrm=off",
            Accelerator::Tcg | Accelerator::Kvm => "max,la57=off",
        }
    }
}

fn main() -> Result<ExitCode> {
    let status = match Xtask::parse().task {
        Task::Tidy { longest, sentences, prose } => {
            let root = lab::workspace().canonicalize()?;
            if prose.is_empty() {
                u8::from(!tidy::tidy(&root, longest, sentences)?)
            } else {
                tidy::list_prose(&root, &prose)?;
                0
            }
        }
        Task::Vm { machine, out, count, command } => {
            let line = shlex::try_join(command.iter().map(String::as_str)).context("a NUL in the command")?;
            let guest = Guest::new(machine, out)?;
            match count {
                None => guest.run(&line)?,
                Some(program) => breakdown::of_program(guest, &line, &program)?,
            }
        }
        Task::VmKernel { machine } => {
            println!("{}", Kernel::of(machine.kernel)?.release);
            0
        }
        Task::BookPages { question } => {
            // With a question mdBook asks whether a kind of book is known; all are, since only Markdown is changed.
            if question.is_empty() {
                book::preprocess(&std::env::current_exe().context("where xtask is")?.with_file_name("vmio"))?;
            }
            0
        }
        Task::BookLinks { built } => {
            book::check_links(&built)?;
            0
        }
        Task::VmPrograms => {
            println!("{}", programs::fetched()?.display());
            0
        }
        Task::VmLab { machine, checks } => suite::run_lab(machine, &checks)?,
        Task::VmInstructions { machine } => suite::count_instructions(machine)?,
        Task::VmTests { machine, engine, tests } => suite::run(machine, engine, &tests)?,
        Task::VmEach { machine, limit, tests } => each::run(machine, limit, &tests)?,
        Task::VmRing0 { machine, tests } => ring0::run(machine, &tests)?,
        Task::Module { kernels, sparse } => {
            for kernel in kernels {
                let module = if sparse { module::check(kernel)? } else { module::build(kernel)? };
                println!("{}", module.display());
            }
            0
        }
        Task::ModuleTests { machine, rounds, tests } => module::test(machine, rounds, &tests)?,
        Task::ModuleBench { machine, question } => module_bench::run_in_guest(machine, question)?,
        Task::ModuleMutants { machine, mutants } => mutants::run(machine, &mutants)?,
    };
    Ok(ExitCode::from(status))
}
