//! Calls on all that a damaged file system has, for tests and the fuzz target.

use vmio_pmfs::{ALIGNED, Changes, Fs, Kind, Length, New, Precondition, ROOT, RangeChange, Replace, Seek};

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
                    _ = fs.change_range(named.ino, RangeChange::Punch, 3000, 9000);
                    _ = fs.change_range(named.ino, RangeChange::Zero(Length::Stays), 20_000, 9000);
                    _ = fs.seek(named.ino, 0, Seek::Hole);
                    _ = fs.set_attributes(named.ino, &Changes { size: Some(100), ..Changes::default() });
                }
            }
            for name in fs.xattrs(named.ino).unwrap_or_default() {
                _ = fs.xattr(named.ino, &name);
                _ = fs.remove_xattr(named.ino, &name);
            }
            _ = fs.set_xattr(named.ino, b"user.more", &[1; 300], Precondition::None);
            _ = fs.set_xattr(named.ino, ALIGNED.as_bytes(), b"1", Precondition::None);
            _ = fs.exchange(directory, &named.name, ROOT, b"second");
            _ = fs.rename(directory, &named.name, ROOT, b"moved", Replace::Yes);
            _ = fs.unlink(ROOT, b"moved");
        }
    }
    _ = fs.gather(8);
    _ = fs.create(ROOT, b"new", New::File, 0o644, (0, 0));
}
