//! The devices that vmio can use without the block layer, and the obstacles to that.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::Access as Rights;
use serde::Serialize;
use vmio::backing::DaxBacking;
use vmio::{Access, Error};
use vmio_report::size::format_size;

/// The devices of the dax bus.
const DAX_DEVICES: &str = "/sys/bus/dax/devices";

/// The devices of this machine.
#[derive(Serialize)]
pub struct Devices {
    /// The instructions that copy to and from persistent memory and write cache lines back; none on processors that vmio does not know.
    persistent_memory: Option<String>,
    pmem_devices: Vec<PmemDevice>,
    dax_devices: Vec<DaxDevice>,
    /// File systems that are mounted with DAX.
    dax_mounts: Vec<DaxMount>,
    nvme_namespaces: Vec<NvmeNamespace>,
    /// None if the module is not loaded.
    kernel_module: Option<ModuleDevice>,
}

/// Persistent memory, as the block device for a file system.
#[derive(Serialize)]
struct PmemDevice {
    path: PathBuf,
    /// Whether a file system on it can have DAX.
    dax: bool,
    /// The mount point of its file system.
    mounted_at: Option<PathBuf>,
}

/// Memory without a file system: a device in mode devdax.
#[derive(Serialize)]
struct DaxDevice {
    path: PathBuf,
    bytes: u64,
    /// The unit of its mappings.
    alignment_bytes: u64,
    /// Whether this user may read and write it.
    accessible: bool,
}

#[derive(Serialize)]
struct DaxMount {
    path: PathBuf,
    file_system: String,
    option: String,
    /// Whether a process can map a file there as persistent memory (MAP_SYNC); none if this user may not create a file to try it.
    map_sync: Option<bool>,
}

#[derive(Serialize)]
struct NvmeNamespace {
    /// The character device.
    path: PathBuf,
    /// Whether its driver has queues for polling.
    polls: bool,
    /// Whether this user may read and write it.
    accessible: bool,
    /// Its present user, which prevents mapping it.
    used_by: Option<String>,
}

/// The device file of the kernel module.
#[derive(Serialize)]
struct ModuleDevice {
    path: PathBuf,
    /// Whether this user may use it.
    accessible: bool,
}

impl Devices {
    /// Finds the devices. Opens none of them; in file systems with DAX it creates a file without a name and maps it.
    pub fn find(persistent_memory: Option<String>) -> Devices {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let module = Path::new("/dev/vmio");
        Devices {
            persistent_memory,
            pmem_devices: names_in("/sys/block").iter().filter_map(|name| pmem_device(name, &mounts)).collect(),
            dax_devices: names_in(DAX_DEVICES).iter().filter_map(|name| dax_device(name)).collect(),
            dax_mounts: mounts.lines().filter_map(dax_mount).map(DaxMount::tried).collect(),
            nvme_namespaces: names_in("/dev").iter().filter_map(|name| namespace(name, &mounts)).collect(),
            kernel_module: module
                .exists()
                .then(|| ModuleDevice { path: module.to_owned(), accessible: may_use(module) }),
        }
    }

    /// Prints the devices as text.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "Devices that vmio can use without the block layer:")?;
        let mut line = |name: &str, text: &str| writeln!(out, "{name:<17}  {text}");
        let instructions = self.persistent_memory.as_deref().unwrap_or("none: this processor is not known");
        line("persistent memory", &format!("copies and write-backs by {instructions}"))?;
        for PmemDevice { path, dax, mounted_at } in &self.pmem_devices {
            let state = match (dax, mounted_at) {
                (_, Some(folder)) => format!("mounted at {}", folder.display()),
                (true, None) => "not mounted: create a file system on it, and mount it with -o dax=always".to_owned(),
                (false, None) => "without DAX: `ndctl create-namespace --mode fsdax` enables it".to_owned(),
            };
            line("", &format!("{}: {state}", path.display()))?;
        }
        for DaxDevice { path, bytes, alignment_bytes, accessible } in &self.dax_devices {
            let (size, alignment) = (format_size(*bytes), format_size(*alignment_bytes));
            line("", &format!("{}: {size} in mode devdax, aligned at {alignment}: for `vmio pmfs`", path.display()))?;
            if !accessible {
                line("", "  -> this user may not read and write it")?;
            }
        }
        for DaxMount { path, file_system, option, map_sync } in &self.dax_mounts {
            let maps = match map_sync {
                Some(true) => "its files can be mapped",
                Some(false) => "its files cannot be mapped (MAP_SYNC)",
                None => "not tested: this user may not create a file there",
            };
            line("", &format!("{}: {file_system}, {option}: {maps}", path.display()))?;
        }
        if self.dax_mounts.is_empty() {
            line("", "no file system is mounted with DAX")?;
        }
        for NvmeNamespace { path, polls, accessible, used_by } in &self.nvme_namespaces {
            let how = if *polls {
                "can be polled"
            } else {
                "interrupts only: nvme.poll_queues=N gives the driver queues for polling"
            };
            line("NVMe", &format!("{}: {how}", path.display()))?;
            if let Some(user) = used_by {
                line("", &format!("  -> cannot be mapped while it is {user}"))?;
            }
            if !accessible {
                line("", "  -> this user may not read and write it")?;
            }
        }
        if self.nvme_namespaces.is_empty() {
            line("NVMe", "no namespace has a character device (/dev/ngXnY, since Linux 5.13)")?;
        }
        match &self.kernel_module {
            None => line("kernel module", "not loaded: there is no /dev/vmio")?,
            Some(ModuleDevice { path, accessible: true }) => line("kernel module", &path.display().to_string())?,
            Some(ModuleDevice { path, accessible: false }) => {
                line("kernel module", &path.display().to_string())?;
                line("", "  -> this user may not use it: 60-vmio.rules gives it to the group vmio")?;
            }
        }
        Ok(())
    }
}

/// The names in a folder, sorted.
fn names_in(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn may_use(device: &Path) -> bool {
    rustix::fs::access(device, Rights::READ_OK | Rights::WRITE_OK).is_ok()
}

/// The mount point of a block device or one of its partitions, from /proc/self/mounts.
fn mounted_at(device: &str, mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (source, rest) = line.split_once(' ')?;
        let part = source.strip_prefix("/dev/")?.strip_prefix(device)?;
        let is_its = part.is_empty() || part.strip_prefix('p').is_some_and(|number| number.parse::<u32>().is_ok());
        is_its.then(|| PathBuf::from(rest.split(' ').next().unwrap_or(rest)))
    })
}

/// A block device, as /sys describes it, if it is persistent memory.
fn pmem_device(name: &str, mounts: &str) -> Option<PmemDevice> {
    name.strip_prefix("pmem")?;
    let dax = fs::read_to_string(format!("/sys/block/{name}/queue/dax")).ok()?;
    Some(PmemDevice {
        path: Path::new("/dev").join(name),
        dax: dax.trim() == "1",
        mounted_at: mounted_at(name, mounts),
    })
}

/// A device of the dax bus, as /sys describes it, unless the kernel uses it as system memory.
fn dax_device(name: &str) -> Option<DaxDevice> {
    let folder = Path::new(DAX_DEVICES).join(name);
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
    let is_handed_out = fs::read_link(folder.join("driver")).is_ok_and(|driver| driver.ends_with("device_dax"));
    let (bytes, alignment_bytes) = (number("size")?, number("align")?);
    let path = Path::new("/dev").join(name);
    is_handed_out.then(|| DaxDevice { accessible: may_use(&path), path, bytes, alignment_bytes })
}

/// A line of /proc/self/mounts, if it is of a file system with DAX.
fn dax_mount(line: &str) -> Option<DaxMount> {
    let mut fields = line.split(' ').skip(1);
    let (path, file_system, options) = (fields.next()?, fields.next()?, fields.next()?);
    let option = options.split(',').find(|option| matches!(*option, "dax" | "dax=always" | "dax=inode"))?;
    let (file_system, option) = (file_system.to_owned(), option.to_owned());
    Some(DaxMount { path: path.into(), file_system, option, map_sync: None })
}

impl DaxMount {
    /// The same, after trying to map a file there.
    fn tried(self) -> DaxMount {
        let map_sync = tempfile::tempfile_in(&self.path).ok().and_then(|file| {
            match DaxBacking::open(format!("/proc/self/fd/{}", file.as_raw_fd()), Access::ReadWrite) {
                Ok(_) => Some(true),
                Err(Error::NotDax { .. }) => Some(false),
                Err(_) => None,
            }
        });
        DaxMount { map_sync, ..self }
    }
}

/// The NVMe namespace behind a file in /dev, if there is one.
fn namespace(name: &str, mounts: &str) -> Option<NvmeNamespace> {
    let block_device = format!("nvme{}", name.strip_prefix("ng")?);
    let poll = fs::read_to_string(format!("/sys/block/{block_device}/queue/io_poll")).ok()?;
    let holders = names_in(&format!("/sys/block/{block_device}/holders"));
    let path = Path::new("/dev").join(name);
    Some(NvmeNamespace {
        polls: poll.trim() == "1",
        accessible: may_use(&path),
        used_by: mounted_at(&block_device, mounts)
            .map(|folder| format!("mounted at {}", folder.display()))
            .or_else(|| holders.first().map(|holder| format!("part of {holder}"))),
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_dax_if_its_options_say_so() {
        let found = dax_mount("/dev/pmem0 /mnt/pmem ext4 rw,relatime,dax=always,stripe=512 0 0").unwrap();
        assert_eq!(
            (found.path.as_path(), &*found.file_system, &*found.option),
            (Path::new("/mnt/pmem"), "ext4", "dax=always")
        );
        for line in ["/dev/pmem0 /mnt/pmem ext4 rw,dax=never 0 0", "/dev/sda1 /dax ext4 rw 0 0", ""] {
            assert!(dax_mount(line).is_none());
        }
    }

    #[test]
    fn a_device_is_mounted_if_it_or_a_part_of_it_is() {
        let mounts = "proc /proc proc rw 0 0\n/dev/nvme0n12 /twelve xfs rw 0 0\n/dev/nvme0n1p2 /boot ext4 rw 0 0\n";
        assert_eq!(mounted_at("nvme0n1", mounts), Some("/boot".into()));
        assert_eq!(mounted_at("nvme0n12", mounts), Some("/twelve".into()));
        assert_eq!(mounted_at("nvme0n2", mounts), None);
    }

    /// There is no DAX here, and no file to try it with.
    #[test]
    fn where_no_file_can_be_mapped_so_that_is_said() {
        let mount = |path: &str| dax_mount(&format!("/dev/sda {path} ext4 rw,dax=always 0 0")).unwrap().tried();
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(mount(folder.path().to_str().unwrap()).map_sync, Some(false));
        assert_eq!(mount("/proc").map_sync, None);
    }
}
