//! A machine under QEMU that runs one command and switches itself off.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::emulator::Emulator;
use crate::kernel::Kernel;
use crate::lab::{lab_folder, path_with_sbin, run};
use crate::{Machine, breakdown, initramfs, programs};

/// The size of the guest's disk. Only written blocks take space on the host's disk.
const DISK_BYTES: u64 = 8 << 30;
/// Of its NVMe drive, which is empty.
const NVME_BYTES: u64 = 1 << 30;
/// Loaded once the host's files are there, with options; those that a kernel's package lacks are left out. Others take a modprobe.
const MODULES: [&str; 6] = ["virtio_blk", "ext4", "loop", "zram", "nfit", "nd_pmem"];
/// The kernel parameters that make it check memory.
const MEMORY_CHECKS: &str = " slub_debug=FZPU page_poison=1 kfence.sample_interval=10";
/// Of timeout(1).
const TIMED_OUT: i32 = 124;
/// The signal of a failed assertion.
const SIGABRT: i32 = 6;
/// How often a guest starts whose emulator has aborted.
const BOOTS_MAX: u32 = 3;

/// A machine that is ready to boot.
pub(crate) struct Guest {
    machine: Machine,
    emulator: Emulator,
    kernel: Kernel,
    /// What its devices hold, and the initramfs.
    scratch: TempDir,
    /// $OUT inside.
    out: PathBuf,
    /// The plugin that counts instructions, to the file of that name in $OUT.
    counter: Option<PathBuf>,
}

/// QEMU's options that divide cores and memory among NUMA nodes: neighbouring cores share a node, and the last node gets the rest.
fn node_options(cores: u32, memory_mib: u32, nodes: u32) -> Vec<String> {
    let (cores_each, memory_each) = (cores / nodes, memory_mib / nodes);
    let mut options = Vec::new();
    for node in 0..nodes {
        let (first, is_last) = (node * cores_each, node == nodes - 1);
        let last = if is_last { cores } else { first + cores_each } - 1;
        let size = if is_last { memory_mib - node * memory_each } else { memory_each };
        options.extend(["-object".to_owned(), format!("memory-backend-ram,id=node{node},size={size}M")]);
        options.extend(["-numa".to_owned(), format!("node,nodeid={node},memdev=node{node},cpus={first}-{last}")]);
    }
    options
}

/// A kernel's report of its own fault if its log has one, or else its last lines.
fn last_words(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let is_report =
        |line: &&str| ["BUG:", "Oops", "WARNING:", "Kernel panic", "stall"].iter().any(|word| line.contains(word));
    let first = lines.iter().position(is_report).unwrap_or(lines.len().saturating_sub(20));
    lines[first..].iter().take(80).copied().collect::<Vec<_>>().join("\n")
}

impl Guest {
    /// Makes what the machine boots from. What the command leaves in $OUT is kept if it has a folder of its own.
    pub(crate) fn new(machine: Machine, out: Option<PathBuf>) -> Result<Guest> {
        ensure!((1..=machine.cores).contains(&machine.nodes), "each node of memory needs a core");
        let emulator = Emulator::fetched()?;
        let kernel = Kernel::of(machine.kernel)?;
        let scratch = tempfile::tempdir_in(lab_folder()?)?;
        initramfs::write(&kernel, scratch.path())?;
        let out = out.unwrap_or_else(|| scratch.path().join("out"));
        fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
        Ok(Guest { machine, emulator, kernel, scratch, out: out.canonicalize()?, counter: None })
    }

    /// Has the instructions counted between marks of its programs ([`breakdown`]).
    pub(crate) fn counting(self) -> Result<Guest> {
        Ok(Guest { counter: Some(breakdown::plugin()?), ..self })
    }

    /// $OUT as the host sees it.
    pub(crate) fn out(&self) -> &Path {
        &self.out
    }

    /// Boots, has bash run a script in the current directory, and returns its exit status.
    pub(crate) fn run(&self, script: &str) -> Result<u8> {
        let folder = std::env::current_dir()?;
        let folder = shlex::try_quote(folder.to_str().context("the current directory is not UTF-8")?)?.into_owned();
        let path = match programs::present()? {
            Some(bin) => format!("PATH={}:$PATH\n", shlex::try_quote(&bin.to_string_lossy())?),
            None => String::new(),
        };
        fs::write(self.out.join("command"), format!("{path}cd {folder} || exit\n{script}\n"))?;
        fs::write(self.out.join("kernel"), format!("{}\n", self.kernel.root.display()))?;
        // No more queues than cores, or the driver refuses.
        let nvme = format!("nvme poll_queues={}", self.machine.cores.min(2));
        fs::write(self.out.join("modules"), [&MODULES[..], &[nvme.as_str()]].concat().join("\n") + "\n")?;
        let status_file = self.out.join("status");
        let mut boots = 0;
        let ended = loop {
            boots += 1;
            self.empty_devices()?;
            if status_file.exists() {
                fs::remove_file(&status_file)?;
            }
            let ended = self.qemu().status().context("starting QEMU")?;
            // QEMU 7.2 with several emulated processors sometimes fails an assertion of its own (iotlb_to_section) while they start.
            if ended.signal() != Some(SIGABRT) || boots == BOOTS_MAX {
                break ended;
            }
            eprintln!("QEMU has aborted: the guest starts once more");
        };
        if let Some(status) = fs::read_to_string(&status_file).ok().and_then(|status| status.trim().parse().ok()) {
            return Ok(status);
        }
        let log = fs::read(self.out.join("kernel.log")).unwrap_or_default();
        let what = if ended.code() == Some(TIMED_OUT) { "ran out of time" } else { "ended without a result" };
        bail!(
            "the guest {what} ({ended}); the last that its kernel said:\n{}",
            last_words(&String::from_utf8_lossy(&log))
        );
    }

    /// Makes its devices anew.
    fn empty_devices(&self) -> Result<()> {
        for (name, bytes) in [("disk", DISK_BYTES), ("nvme", NVME_BYTES), ("nvdimm", self.machine.nvdimm_bytes())] {
            File::create(self.scratch.path().join(name))?.set_len(bytes)?;
        }
        let mut mkfs = Command::new("mkfs.ext4");
        run(mkfs.args(["-q", "-F"]).arg(self.scratch.path().join("disk")).env("PATH", path_with_sbin()))
    }

    fn qemu(&self) -> Command {
        let Machine { cores, memory, nodes, accelerator, memory_checks, timeout, .. } = self.machine;
        let at = |name: &str| self.scratch.path().join(name);
        // timeout(1), since it also ends QEMU when this process is gone.
        let mut command = Command::new("timeout");
        command.args(["--foreground", "--kill-after=5"]).arg(timeout.to_string());
        self.emulator.added_to(&mut command);
        command.args(accelerator.options()).args(["-cpu", accelerator.processor()]);
        command.args(["-machine", "q35,nvdimm=on"]);
        command.args(["-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"]);
        let nvdimm_bytes = self.machine.nvdimm_bytes();
        let most = u64::from(memory) + (nvdimm_bytes >> 20);
        command.args(["-smp", &cores.to_string(), "-m", &format!("{memory}M,slots=1,maxmem={most}M")]);
        if nodes > 1 {
            command.args(node_options(cores, memory, nodes));
        }
        command.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(at("initramfs.cpio"));
        let checks = if memory_checks { MEMORY_CHECKS } else { "" };
        // On a busy host the emulated timer is too late for the kernel's check of it, which gives up then.
        let options = format!("console=ttyS0 panic=-1 loglevel=5 mitigations=off no_timer_check{checks}");
        command.arg("-append").arg(options);
        command.arg("-serial").arg(format!("file:{}", self.out.join("kernel.log").display()));
        command.args(["-serial", "stdio"]);
        let share = |folder: &Path, options| {
            format!("local,path={},security_model=none,multidevs=remap,{options}", folder.display())
        };
        command.arg("-fsdev").arg(share(Path::new("/"), "id=host,readonly=on"));
        command.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
        command.arg("-fsdev").arg(share(&self.out, "id=run"));
        command.args(["-device", "virtio-9p-pci,fsdev=run,mount_tag=run"]);
        for (name, device) in [("disk", "virtio-blk-pci,drive=disk"), ("nvme", "nvme,drive=nvme,serial=vmio")] {
            let file = at(name);
            let drive = format!("if=none,id={name},format=raw,cache=unsafe,discard=unmap,file={}", file.display());
            command.args(["-drive", &drive, "-device", device]);
        }
        let file = at("nvdimm");
        let memory = format!("id=nvdimm,share=on,align=2M,size={nvdimm_bytes},mem-path={}", file.display());
        // On the last node, so that it is far from some cores if there are several.
        let device = format!("nvdimm,memdev=nvdimm,node={}", nodes - 1);
        command.args(["-object", &format!("memory-backend-file,{memory}"), "-device", &device]);
        if let Some(counter) = &self.counter {
            let counts = self.out.join("instructions");
            command.arg("-plugin").arg(format!("{},out={}", counter.display(), counts.display()));
        }
        command.stdin(Stdio::null());
        command
    }
}
