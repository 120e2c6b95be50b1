//! `vmio doctor`: shows what this machine offers, what vmio will use of it, and what the user could change.

mod devices;
mod file;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use vmio::Engine;
use vmio::probe::{self, KernelFeature, Probe};
use vmio_report::machine::memory_bytes;
use vmio_report::size::format_size;
use vmio_report::standard_output::print_line;

use self::devices::Devices;
use self::file::FileReport;

const EXAMPLES: &str = "\
Examples:
  vmio doctor                                     check this machine
  vmio doctor --file /data/big.bin                also check a file and its device
  vmio doctor --without batched-unmap,wp-async    show what vmio would use on an older kernel
  vmio doctor --json";

/// Show what this kernel and these devices offer, what vmio will use, and what you could change.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Also check this file or device and its file system
    #[arg(long)]
    file: Option<PathBuf>,
    /// Show what vmio would use on a kernel without these features
    #[arg(long, value_delimiter = ',')]
    without: Vec<KernelFeature>,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    cores: usize,
    memory_bytes: Option<u64>,
    swap_on: bool,
    checks: Vec<Check>,
    /// The default engine of a cache.
    engine: &'static str,
    /// The interface version of the kernel module, if it is loaded.
    kernel_module_interface: Option<u32>,
    kernel_features: Vec<FeatureReport>,
    usable: bool,
    devices: Devices,
    file: Option<FileReport>,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    used_for: &'static str,
    /// The reason why the check fails, and the remedy.
    advice: Option<String>,
}

#[derive(Serialize)]
struct FeatureReport {
    name: &'static str,
    ok: bool,
    /// The reason why the feature is missing.
    reason: Option<String>,
    /// The first version of Linux that has it.
    since: &'static str,
    used_for: &'static str,
    /// vmio's substitute for the feature, and its cost.
    in_its_place: &'static str,
}

/// Runs `vmio doctor`.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let report = examine(args.file.as_deref(), &args.without)?;
    if args.json {
        print_line(serde_json::to_string_pretty(&report)?)
    } else {
        print(&report, &mut io::stdout().lock()).context("cannot write to standard output")
    }
}

fn examine(file: Option<&Path>, without: &[KernelFeature]) -> anyhow::Result<Report> {
    let features = probe::probe_without(without);
    let managed = features.auto_engine == Engine::Managed;
    let usable = managed || (features.userfaultfd.is_yes() && features.write_protect.is_yes());
    let checks = vec![
        check("userfaultfd", "handling page faults in user space", features.userfaultfd),
        check("write-protect", "finding dirty pages", features.write_protect),
        check("reader threads", "page faults inside system calls (Engine::ReaderThread)", features.kernel_faults),
        check("kernel module", "page faults handled by vmio.ko (Engine::Kernel)", features.kernel_module),
        check(
            "ring 0",
            "page faults handled in the process's own virtual machine (Engine::Ring0, never chosen by itself)",
            probe_ring0(),
        ),
        check("cachestat", "counting dirty pages, in the managed engine", features.cachestat),
        check("locked memory", "keeping the cache out of swap", features.lock_memory),
    ];
    Ok(Report {
        kernel: features.kernel_release,
        cores: features.cores,
        memory_bytes: memory_bytes(),
        swap_on: features.swap_on,
        checks,
        engine: if managed { "managed" } else { "sigbus" },
        kernel_module_interface: features.kernel_module_interface,
        kernel_features: features.kernel.into_iter().map(feature_report).collect(),
        usable,
        devices: Devices::find(features.persistent_memory),
        file: file.map(FileReport::of).transpose()?,
    })
}

/// Whether this process can have the machine, which it then has.
fn probe_ring0() -> Probe {
    #[cfg(target_arch = "x86_64")]
    return vmio::ring0::start().map_or_else(|error| Probe::No(error.to_string()), |()| Probe::Yes);
    #[cfg(not(target_arch = "x86_64"))]
    Probe::No("it needs x86-64".to_owned())
}

fn check(name: &'static str, used_for: &'static str, probe: Probe) -> Check {
    let advice = match probe {
        Probe::Yes => None,
        Probe::No(advice) => Some(advice),
    };
    Check { name, ok: advice.is_none(), used_for, advice }
}

fn feature_report((feature, probe): (KernelFeature, Probe)) -> FeatureReport {
    let reason = match probe {
        Probe::Yes => None,
        Probe::No(reason) => Some(reason),
    };
    FeatureReport {
        name: feature.name(),
        ok: reason.is_none(),
        reason,
        since: feature.since(),
        used_for: feature.used_for(),
        in_its_place: feature.in_its_place(),
    }
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "kernel          {}", report.kernel)?;
    writeln!(out, "cores           {}", report.cores)?;
    if let Some(bytes) = report.memory_bytes {
        writeln!(out, "memory          {}", format_size(bytes))?;
    }
    writeln!(out, "swap            {}", if report.swap_on { "on" } else { "off" })?;
    writeln!(out)?;
    for check in &report.checks {
        let verdict = if check.ok { "yes" } else { "no" };
        writeln!(out, "{:<15} {verdict:<4} {}", check.name, check.used_for)?;
        if let Some(advice) = &check.advice {
            writeln!(out, "{:<15}      -> {advice}", "")?;
        }
    }
    writeln!(out)?;
    writeln!(out, "Optional features of newer kernels:")?;
    for feature in &report.kernel_features {
        let verdict = if feature.ok { "yes" } else { "no" };
        writeln!(out, "{:<15} {verdict:<4} since Linux {}: {}", feature.name, feature.since, feature.used_for)?;
        if let Some(reason) = &feature.reason {
            writeln!(out, "{:<15}      -> {reason}", "")?;
        }
        writeln!(out, "{:<15}      without it: {}", "", feature.in_its_place)?;
    }
    writeln!(out)?;
    if report.usable && report.engine == "managed" {
        writeln!(
            out,
            "Will be used: the managed engine (Linux mmap, with a thread that evicts pages beyond the budget), since there is \
             no userfaultfd. It may exceed the budget for milliseconds, and maps files and block devices only."
        )?;
    } else if report.usable {
        writeln!(out, "Will be used: the SIGBUS engine (the faulting thread handles the fault; no privileges);")?;
        let has = |wanted: KernelFeature| report.kernel_features.iter().any(|it| it.ok && it.name == wanted.name());
        let tracks_stores = [KernelFeature::WpAsync, KernelFeature::PagemapScan, KernelFeature::ShmemWp];
        writeln!(
            out,
            "eviction {}; for FrameHint::Mixed, {} frames.",
            if has(KernelFeature::BatchedUnmap) { "of scattered pages" } else { "of whole spans" },
            if tracks_stores.into_iter().all(has) { "memfd" } else { "anonymous" },
        )?;
    } else {
        writeln!(out, "vmio cannot run here: follow the advice in the lines marked ->.")?;
    }
    if let Some(version) = report.kernel_module_interface
        && report.checks.iter().any(|check| check.name == "kernel module" && check.ok)
    {
        writeln!(
            out,
            "Available: the kernel module (Engine::Kernel, version {version} of its interface), for mappings of files and \
             block devices without verifiers, poison and commits."
        )?;
    }
    if report.swap_on && report.checks.iter().any(|check| check.name == "locked memory" && !check.ok) {
        writeln!(
            out,
            "You could change: swap is on and the cache cannot be locked in memory, so the kernel may swap it out."
        )?;
    }
    writeln!(out)?;
    report.devices.print(out)?;
    if let Some(file) = &report.file {
        writeln!(out)?;
        file.print(out)?;
    }
    Ok(())
}
