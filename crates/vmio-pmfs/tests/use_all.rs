//! Calls on all that a damaged file system has, for tests and the fuzz target.

use vmio_pmfs::{Changes, Fs, Kind, New, ROOT, Replace};

/// Uses all that there is. Errors are answers.
pub fn use_all(fs: &Fs) {
    let (mut left, mut seen) = (vec![ROOT], 0);
    while let Some(directory) = left.pop() {
        for named in fs.list(directory, 0, 100).unwrap_or_default() {
            seen += 1;
            match named.kind {
                Kind::Directory if seen < 100 => left.push(named.ino),
                Kind::Symlink => _ = fs.read_link(named.ino),
                _ => {
                    _ = fs.read(named.ino, 0, &mut [0; 9000]);
                    _ = fs.write(named.ino, 5000, &[1; 9000]);
                    _ = fs.write(named.ino, 1 << 20, &[1; 9000]);
                    _ = fs.rewrite_aligned(named.ino);
                    _ = fs.set_attributes(named.ino, &Changes { size: Some(100), ..Changes::default() });
                }
            }
            _ = fs.rename(directory, &named.name, ROOT, b"moved", Replace::Yes);
            _ = fs.unlink(ROOT, b"moved");
        }
    }
    _ = fs.gather(8);
    _ = fs.create(ROOT, b"new", New::File, 0o644, (0, 0));
}
