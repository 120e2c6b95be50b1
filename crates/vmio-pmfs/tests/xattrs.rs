//! Extended attributes one by one.

#![allow(clippy::unwrap_used)]

use crate::support::{fill, made, patterned, sound, tree};
use vmio_pmfs::{ALIGNED, Error, Fs, New, Precondition, ROOT};

fn file(fs: &Fs, directory: u64, name: &str) -> u64 {
    fs.create(directory, name.as_bytes(), New::File, 0o644, (1, 2)).unwrap().ino
}

#[test]
fn attributes_are_there_after_a_remount_and_their_block_is_in_use() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, ROOT, "a");
    let free = fs.space().free_blocks;
    fs.set_xattr(a, b"user.one", b"first", Precondition::None).unwrap();
    fs.set_xattr(a, b"security.two", &patterned(2, 3000), Precondition::Absent).unwrap();
    fs.set_xattr(a, b"user.one", b"", Precondition::Present).unwrap();
    assert_eq!((fs.space().free_blocks, fs.attributes(a).unwrap().blocks), (free - 1, 1));
    let (before, space) = (tree(&fs), fs.space());
    drop(fs);
    assert_eq!(sound(medium.clone(), "attributes"), (before, 0));
    let fs = Fs::mount(medium).unwrap();
    assert_eq!(fs.space(), space);
    assert_eq!(fs.xattrs(a).unwrap(), [&b"security.two"[..], b"user.one"]);
    assert_eq!(fs.xattr(a, b"user.one").unwrap(), b"");
    assert_eq!(fs.xattr(a, b"security.two").unwrap(), patterned(2, 3000));
    fs.remove_xattr(a, b"user.one").unwrap();
    fs.remove_xattr(a, b"security.two").unwrap();
    assert_eq!(fs.space().free_blocks, free, "the last attribute's end frees the block");
    fs.set_xattr(a, b"user.one", b"again", Precondition::None).unwrap();
    fs.unlink(ROOT, b"a").unwrap();
    assert_eq!(fs.space().free_blocks, free, "the file's end frees the block");
}

#[test]
fn each_mistake_has_its_error() {
    let fs = Fs::mount(made()).unwrap();
    let a = file(&fs, ROOT, "a");
    let set = |name: &[u8], value: &[u8], precondition| fs.set_xattr(a, name, value, precondition);
    assert!(matches!(fs.xattr(a, b"user.none"), Err(Error::NoXattr { .. })));
    assert!(matches!(fs.xattr(a, ALIGNED.as_bytes()), Err(Error::NoXattr { .. })));
    assert!(matches!(fs.remove_xattr(a, b"user.none"), Err(Error::NoXattr { .. })));
    assert!(matches!(set(b"user.none", b"", Precondition::Present), Err(Error::NoXattr { .. })));
    set(b"user.one", b"", Precondition::None).unwrap();
    assert!(matches!(set(b"user.one", b"", Precondition::Absent), Err(Error::XattrExists { .. })));
    for name in [&b"system.posix_acl_access"[..], b"one", b""] {
        assert!(matches!(set(name, b"", Precondition::None), Err(Error::Unsupported { .. })), "{name:?}");
    }
    assert!(matches!(
        set(&[&b"user."[..], &[b'x'; 251]].concat(), b"", Precondition::None),
        Err(Error::BadXattr { .. })
    ));
    assert!(matches!(set(b"user.", b"", Precondition::None), Err(Error::BadXattr { .. })));
    assert!(matches!(set(ALIGNED.as_bytes(), b"0", Precondition::None), Err(Error::BadXattr { .. })));
    assert!(matches!(set(b"user.one", &[0; 4096], Precondition::None), Err(Error::XattrsTooLarge { .. })));
    assert_eq!(fs.xattr(a, b"user.one").unwrap(), b"", "what is there stays");
}

#[test]
fn a_full_medium_lets_attributes_be_replaced_and_removed() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let (a, b) = (file(&fs, ROOT, "a"), file(&fs, ROOT, "b"));
    fs.set_xattr(a, b"user.one", b"1", Precondition::None).unwrap();
    fill(&fs, "rest");
    assert!(matches!(fs.set_xattr(b, b"user.one", b"", Precondition::None), Err(Error::NoSpace { .. })));
    assert_eq!(fs.xattrs(b).unwrap().len(), 0);
    fs.set_xattr(b, ALIGNED.as_bytes(), b"1", Precondition::None).unwrap();
    fs.set_xattr(a, b"user.two", b"2", Precondition::None).unwrap();
    fs.remove_xattr(a, b"user.one").unwrap();
    assert_eq!(fs.xattrs(a).unwrap(), [b"user.two"]);
    let before = tree(&fs);
    assert_eq!(sound(std::sync::Arc::new(medium.copy()), "a full medium"), (before, 0));
    fs.remove_xattr(a, b"user.two").unwrap();
    assert_eq!(fs.space().free_blocks, 1);
}

#[test]
fn new_files_and_folders_inherit_the_alignment_wish() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let d = fs.create(ROOT, b"d", New::Directory, 0o755, (0, 0)).unwrap().ino;
    let before = file(&fs, d, "before");
    let wishes = |ino| fs.xattrs(ino).unwrap() == [ALIGNED.as_bytes()];
    fs.set_xattr(d, ALIGNED.as_bytes(), b"1", Precondition::None).unwrap();
    assert_eq!(fs.xattr(d, ALIGNED.as_bytes()).unwrap(), b"1");
    let inner = fs.create(d, b"inner", New::Directory, 0o755, (0, 0)).unwrap().ino;
    let free = fs.space().free_blocks;
    let (after, deep) = (file(&fs, d, "after"), file(&fs, inner, "deep"));
    assert_eq!(fs.space().free_blocks, free - 1, "the wish has no block, and the inner folder's first entry has");
    let link = fs.create(d, b"link", New::Symlink(b"after"), 0o777, (0, 0)).unwrap().ino;
    let wishing = [before, d, inner, after, deep, link].map(wishes);
    assert_eq!(wishing, [false, true, true, true, true, false]);
    fs.remove_xattr(d, ALIGNED.as_bytes()).unwrap();
    let late = file(&fs, d, "late");
    assert_eq!([d, late, after].map(wishes), [false, false, true]);
    let before = tree(&fs);
    assert_eq!(sound(std::sync::Arc::new(medium.copy()), "wishes"), (before, 0));
}
