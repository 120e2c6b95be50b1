//! Which devices there are that vmio reaches past the block layer.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// What was found.
#[derive(Serialize)]
pub struct Devices {
    /// The instructions that copy to and from persistent memory, and write lines back; none on processors that vmio does not know.
    persistent_memory: Option<String>,
    /// File systems that are mounted with DAX.
    dax_mounts: Vec<DaxMount>,
    nvme_namespaces: Vec<NvmeNamespace>,
}

#[derive(Serialize)]
struct DaxMount {
    path: PathBuf,
    file_system: String,
    option: String,
}

#[derive(Serialize)]
struct NvmeNamespace {
    /// The character device.
    path: PathBuf,
    /// Whether its driver has queues for polling.
    polls: bool,
}

impl Devices {
    /// Looks for them, without opening any.
    pub fn find(persistent_memory: Option<String>) -> Devices {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut nvme_namespaces: Vec<_> =
            fs::read_dir("/dev").into_iter().flatten().flatten().filter_map(|entry| namespace(&entry.path())).collect();
        nvme_namespaces.sort_by(|one, other| one.path.cmp(&other.path));
        Devices { persistent_memory, dax_mounts: mounts.lines().filter_map(dax_mount).collect(), nvme_namespaces }
    }

    /// Says it in text.
    pub fn print(&self) {
        println!("Devices that vmio reaches past the block layer:");
        let instructions = self.persistent_memory.as_deref().unwrap_or("none: this processor is not known");
        println!("{:<17}  copies and write-backs by {instructions}", "persistent memory");
        for DaxMount { path, file_system, option } in &self.dax_mounts {
            println!("{:<17}  {}: {file_system}, {option}", "", path.display());
        }
        if self.dax_mounts.is_empty() {
            println!("{:<17}  no file system is mounted with DAX", "");
        }
        for NvmeNamespace { path, polls } in &self.nvme_namespaces {
            let how = if *polls {
                "can be polled"
            } else {
                "interrupts: nvme.poll_queues=N gives the driver queues for polling"
            };
            println!("{:<17}  {}: {how}", "NVMe", path.display());
        }
        if self.nvme_namespaces.is_empty() {
            println!("{:<17}  no namespace has a character device (/dev/ngXnY, Linux 5.13)", "NVMe");
        }
    }
}

/// A line of /proc/self/mounts, if it is of a file system with DAX.
fn dax_mount(line: &str) -> Option<DaxMount> {
    let mut fields = line.split(' ').skip(1);
    let (path, file_system, options) = (fields.next()?, fields.next()?, fields.next()?);
    let option = options.split(',').find(|option| matches!(*option, "dax" | "dax=always" | "dax=inode"))?;
    Some(DaxMount { path: path.into(), file_system: file_system.to_owned(), option: option.to_owned() })
}

/// What a file in /dev is the namespace of.
fn namespace(path: &Path) -> Option<NvmeNamespace> {
    let name = path.file_name()?.to_str()?.strip_prefix("ng")?;
    let poll = fs::read_to_string(format!("/sys/block/nvme{name}/queue/io_poll")).ok()?;
    Some(NvmeNamespace { path: path.to_owned(), polls: poll.trim() == "1" })
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
}
