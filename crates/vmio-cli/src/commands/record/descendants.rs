//! The descendants of a process.

use std::collections::HashMap;
use std::fs;

/// A process and its present descendants. Misses processes whose parents have ended.
pub fn of(process_id: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for id in
        fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    {
        if let Some(parent) = fs::read_to_string(format!("/proc/{id}/stat")).ok().as_deref().and_then(parent) {
            children.entry(parent).or_default().push(id);
        }
    }
    let mut found = vec![process_id];
    let mut next = 0;
    while let Some(id) = found.get(next) {
        // Removed, so that the search follows no process twice if something changes meanwhile.
        found.extend(children.remove(id).unwrap_or_default());
        next += 1;
    }
    found
}

/// The parent in the text of /proc/PID/stat. The process's name before it may contain anything.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_mislead() {
        assert_eq!(parent("12 (cat) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (a) R 99 (b) S 7 12"), Some(7));
        assert_eq!(parent("12 (cat"), None);
    }

    #[test]
    fn this_process_descends_from_its_parent() {
        assert!(of(std::os::unix::process::parent_id()).contains(&std::process::id()));
        assert_eq!(of(u32::MAX), [u32::MAX]);
    }
}
