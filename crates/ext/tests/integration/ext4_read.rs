//! Volumes that mke2fs makes with the features of ext3 and ext4, read and compared file by file with the tree they were
//! made from. Skipped without mke2fs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::Live;
use moafs_vfs::api::{Options, Seek};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};

/// The contents that a name leads to.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: i64,
    contents: Vec<u8>,
}

type Tree = BTreeMap<String, Entry>;

fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED: {tool} is not installed (package e2fsprogs)");
    }
    found
}

/// Runs a tool, and returns its standard output; fails with all output if it fails.
fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool).args(arguments).stdin(Stdio::null()).output().expect("the tool starts");
    let [text, complaints] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{tool} {arguments:?}: {text}{complaints}");
    text
}

/// Bytes that tell file and place apart.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

/// Makes a tree with files of all lengths around the limits of the format, holes, links and a large directory.
fn make_tree(root: &Path) {
    let sizes = [0, 1, 59, 60, 61, 128, 129, 300, 1023, 1024, 1025, 4096, 4097, 12 * 1024 + 1, 300_000];
    for (at, size) in sizes.into_iter().enumerate() {
        fs::write(root.join(format!("file-{size}")), pattern(at as u64 + 1, size)).unwrap();
    }
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    for piece in 0..40u64 {
        sparse.write_all_at(&pattern(piece + 100, 3000), piece * 40_000).unwrap();
    }
    fs::create_dir(root.join("small")).unwrap();
    for name in ["a", "bb", "a-name-that-does-not-fit-into-the-inode-of-a-directory-of-any-size-that-we-make"] {
        fs::write(root.join("small").join(name), name).unwrap();
    }
    fs::create_dir(root.join("tiny")).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..700 {
        fs::write(root.join("many").join(format!("entry-number-{number:05}")), format!("{number}")).unwrap();
    }
    for len in [1usize, 59, 60, 400] {
        symlink("t".repeat(len), root.join(format!("link-{len}"))).unwrap();
    }
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    fs::write(root.join("deep/er/and/deeper/file"), b"the end").unwrap();
}

fn host_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            let contents = if kind.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if kind.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            let size = if kind.is_dir() { 0 } else { meta.len() };
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let entry =
                Entry { mode: meta.mode(), uid: meta.uid(), gid: meta.gid(), size, mtime: meta.mtime(), contents };
            tree.insert(name, entry);
            if kind.is_dir() {
                todo.push(path);
            }
        }
    }
    tree
}

fn open(disk: &Arc<MemDisk>) -> moafs_vfs::Result<Vfs<Ext>> {
    let rt = Live::new();
    let shared: SharedDisk = disk.clone();
    let ext = Ext::open(Arc::clone(&shared), rt.clone(), OpenOptions::default())?;
    Ok(Vfs::new(ext, shared, rt, Options { syncer: false, ..Options::default() }))
}

fn read_all(vfs: &Vfs<Ext>, ino: Ino, size: u64) -> Vec<u8> {
    let mut contents = vec![0; size as usize];
    let mut at = 0;
    while at < contents.len() {
        let n = vfs.read(ino, at as u64, &mut contents[at..]).expect("the file can be read");
        assert!(n > 0, "inode {} ends at {at} of {size}", ino.0);
        at += n;
    }
    contents
}

fn volume_tree(vfs: &Vfs<Ext>) -> Tree {
    let who = Credentials::root();
    let mut tree = Tree::new();
    let mut todo = vec![(String::new(), vfs.shape().root)];
    while let Some((prefix, directory)) = todo.pop() {
        let mut names = Vec::new();
        vfs.list(&who, directory, Cookie::START, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            true
        })
        .expect("the directory can be listed");
        for name in names.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
            let stat = vfs.lookup(&who, directory, Name::new(name).unwrap()).expect("a listed name is found");
            let name = format!("{prefix}{}", String::from_utf8_lossy(name));
            let (kind, size) = (stat.attr.kind, stat.attr.size);
            let contents = match kind {
                FileKind::Regular => read_all(vfs, stat.ino, size),
                FileKind::Symlink => vfs.readlink(stat.ino).expect("the link can be read"),
                _ => Vec::new(),
            };
            if kind == FileKind::Directory {
                todo.push((format!("{name}/"), stat.ino));
            }
            let entry = Entry {
                mode: kind.mode_bits() | stat.attr.perm,
                uid: stat.attr.uid,
                gid: stat.attr.gid,
                size: if kind == FileKind::Directory { 0 } else { size },
                mtime: stat.attr.mtime.secs,
                contents,
            };
            tree.insert(name, entry);
        }
    }
    tree
}

fn compare(what: &str, host: &Tree, volume: &Tree) {
    let ignored = |name: &&String| !name.starts_with("lost+found");
    let names = |tree: &Tree| tree.keys().filter(ignored).cloned().collect::<Vec<_>>();
    assert_eq!(names(host), names(volume), "{what}");
    for (name, entry) in host {
        let found = &volume[name];
        assert!(
            entry == found,
            "{what}: {name} is mode {:o}, {} bytes; should be mode {:o}, {} bytes",
            found.mode,
            found.size,
            entry.mode,
            entry.size
        );
    }
}

/// The options of mke2fs for a volume.
struct Made {
    options: &'static str,
    /// The name that `Ext` has for it.
    family: &'static str,
}

const fn made(options: &'static str, family: &'static str) -> Made {
    Made { options, family }
}

const KINDS: [Made; 29] = [
    made("-t ext3 -b 1024 -I 128", "ext3"),
    made("-t ext3 -b 4096", "ext3"),
    made("-t ext3 -b 2048 -O ^resize_inode,meta_bg", "ext3"),
    made("-t ext4 -b 1024", "ext4"),
    made("-t ext4 -b 2048", "ext4"),
    made("-t ext4 -b 4096", "ext4"),
    made("-t ext4 -b 1024 -I 128", "ext4"),
    made("-t ext4 -b 1024 -I 1024", "ext4"),
    made("-t ext4 -b 4096 -I 4096 -N 2048", "ext4"),
    made("-t ext4 -b 1024 -O ^64bit", "ext4"),
    made("-t ext4 -b 1024 -O ^has_journal", "ext4"),
    made("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg", "ext4"),
    made("-t ext4 -b 1024 -O ^metadata_csum,^64bit,uninit_bg", "ext4"),
    made("-t ext4 -b 4096 -O ^metadata_csum,^64bit", "ext4"),
    made("-t ext4 -b 1024 -O ^extent,^64bit", "ext4"),
    made("-t ext4 -b 1024 -O ^flex_bg,^resize_inode", "ext4"),
    made("-t ext4 -b 1024 -O meta_bg,^resize_inode -g 1024", "ext4"),
    made("-t ext4 -b 1024 -O sparse_super2", "ext4"),
    made("-t ext4 -b 1024 -O metadata_csum_seed,orphan_file", "ext4"),
    made("-t ext4 -b 1024 -O inline_data", "ext4"),
    made("-t ext4 -b 4096 -O inline_data -I 512", "ext4"),
    made("-t ext4 -b 1024 -O inline_data,^metadata_csum -I 1024", "ext4"),
    made("-t ext4 -b 1024 -O large_dir,ea_inode,mmp", "ext4"),
    made("-t ext4 -b 1024 -O quota,project", "ext4"),
    made("-t ext4 -b 1024 -O bigalloc", "ext4"),
    made("-t ext4 -b 4096 -O bigalloc -C 16384", "ext4"),
    made("-t ext4 -b 1024 -O fast_commit,stable_inodes", "ext4"),
    made("-t ext4 -b 4096 -O casefold -E encoding=utf8", "ext4"),
    made("-t ext4 -b 1024 -E lazy_itable_init=1,nodiscard", "ext4"),
];

struct Volume {
    _directory: tempfile::TempDir,
    image: std::path::PathBuf,
}

/// Makes a volume of a kind with the tree at `source`.
fn make(kind: &Made, source: &Path) -> Volume {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let mut arguments = vec!["-F", "-q"];
    arguments.extend(kind.options.split(' '));
    arguments.extend(["-d", source.to_str().unwrap(), image.to_str().unwrap(), "48M"]);
    run("mke2fs", &arguments);
    Volume { image, _directory: directory }
}

impl Volume {
    fn disk(&self) -> Arc<MemDisk> {
        Arc::new(MemDisk::from_bytes(&fs::read(&self.image).unwrap()))
    }

    fn debugfs(&self, command: &str) -> String {
        run("debugfs", &["-w", "-R", command, self.image.to_str().unwrap()])
    }
}

#[test]
fn trees_of_every_kind_of_volume_are_those_they_were_made_from() {
    if !have("mke2fs") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    make_tree(source.path());
    let host = host_tree(source.path());
    for kind in &KINDS {
        let volume = make(kind, source.path());
        let disk = volume.disk();
        let before = disk.to_bytes();
        let vfs = open(&disk).unwrap_or_else(|error| panic!("{}: {error}", kind.options));
        compare(kind.options, &host, &volume_tree(&vfs));
        assert_eq!(vfs.shape().format, kind.family, "{}", kind.options);
        let sparse = vfs.lookup(&Credentials::root(), Ino(2), Name::new(b"sparse").unwrap()).unwrap();
        let hole = vfs.seek(sparse.ino, 0, Seek::Hole).unwrap();
        assert!(hole < 40_000, "{}: the first hole is at {hole}", kind.options);
        let data = vfs.seek(sparse.ino, hole, Seek::Data).unwrap();
        assert!(data > hole && data <= 40_000, "{}: data go on at {data}", kind.options);
        let is_written = vfs.shape().read_only.is_none();
        vfs.close().unwrap();
        if !is_written {
            assert!(disk.to_bytes() == before, "{}: the volume was written to", kind.options);
        }
    }
}

#[test]
fn a_volume_of_ext4_without_a_journal_is_not_written() {
    if !have("mke2fs") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let volume = make(&made("-t ext4 -b 1024 -O ^has_journal", "ext4"), source.path());
    let vfs = open(&volume.disk()).unwrap();
    let reason = vfs.shape().read_only.clone().expect("it is read-only");
    assert!(reason.contains("extent") && reason.contains("metadata_csum"), "{reason}");
}

#[test]
fn unwritten_extents_and_deep_trees_are_read() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let many = fs::File::create(source.path().join("many")).unwrap();
    for piece in 0..1500u64 {
        many.write_all_at(&pattern(piece, 1024), piece * 2048).unwrap();
    }
    fs::write(source.path().join("whole"), pattern(9, 20 * 1024)).unwrap();
    let volume = make(&made("-t ext4 -b 1024", "ext4"), source.path());
    assert!(volume.debugfs("dump_extents many").contains("/ 2"), "the tree has two levels of nodes");
    volume.debugfs("fallocate whole 30 60");
    volume.debugfs("set_inode_field whole size 81920");
    let vfs = open(&volume.disk()).unwrap();
    let lookup =
        |name: &'static str| vfs.lookup(&Credentials::root(), Ino(2), Name::new(name.as_bytes()).unwrap()).unwrap();
    let stat = lookup("many");
    assert!(read_all(&vfs, stat.ino, stat.attr.size) == fs::read(source.path().join("many")).unwrap());
    let stat = lookup("whole");
    assert_eq!(stat.attr.size, 81920);
    let mut expected = pattern(9, 20 * 1024);
    expected.resize(81920, 0);
    assert!(read_all(&vfs, stat.ino, stat.attr.size) == expected, "unwritten blocks read as zeros");
    assert_eq!(vfs.seek(stat.ino, 0, Seek::Hole).unwrap(), 20 * 1024);
}

#[test]
fn names_of_a_casefolded_directory_are_found_in_any_case() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("folded")).unwrap();
    fs::write(source.path().join("folded/ReadMe"), b"text").unwrap();
    let volume = make(&made("-t ext4 -b 1024 -O casefold -E encoding=utf8", "ext4"), source.path());
    volume.debugfs("set_inode_field folded flags 0x40080000");
    let vfs = open(&volume.disk()).unwrap();
    let who = Credentials::root();
    let folder = vfs.lookup(&who, Ino(2), Name::new(b"folded").unwrap()).unwrap();
    for name in [&b"ReadMe"[..], b"README", b"readme"] {
        vfs.lookup(&who, folder.ino, Name::new(name).unwrap()).expect("the name is found");
    }
    assert!(vfs.lookup(&who, folder.ino, Name::new(b"readyou").unwrap()).is_err());
    assert!(vfs.lookup(&who, Ino(2), Name::new(b"FOLDED").unwrap()).is_err());
}

/// Flips a bit of a structure, and returns the error that reading the volume then gives.
fn damage(volume: &Volume, at: u64, read: impl FnOnce(&Vfs<Ext>) -> moafs_vfs::Result<()>) -> String {
    let disk = volume.disk();
    let mut byte = [0];
    disk.peek(at, &mut byte);
    disk.poke(at, &[byte[0] ^ 4]);
    let outcome = open(&disk).and_then(|vfs| read(&vfs));
    outcome.expect_err("damage is reported").to_string()
}

#[test]
fn wrong_checksums_name_the_structure_and_its_block() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    make_tree(source.path());
    let volume = make(&KINDS[3], source.path());
    let block_of = |name: &str, lbn: u32| -> u64 {
        volume.debugfs(&format!("bmap {name} {lbn}")).lines().last().unwrap().trim().parse().unwrap()
    };
    let who = Credentials::root();
    let path = |name: &'static str| Name::new(name.as_bytes()).unwrap();
    let list = |vfs: &Vfs<Ext>, name: &'static str| {
        let stat = vfs.lookup(&who, Ino(2), path(name))?;
        vfs.list(&who, stat.ino, Cookie::START, &mut |_| true)
    };
    let text = damage(&volume, 1024 + 0x78, |_| Ok(()));
    assert!(text.contains("superblock") && text.contains("should be"), "{text}");
    let text = damage(&volume, 2048 + 12, |_| Ok(()));
    assert!(text.contains("descriptor of group 0") && text.contains("should be"), "{text}");
    let leaf = block_of("many", 3);
    let text = damage(&volume, leaf * 1024 + 700, |vfs| list(vfs, "many"));
    assert!(text.contains("directory inode") && text.contains(&leaf.to_string()), "{text}");
    let root = block_of("many", 0);
    let text = damage(&volume, root * 1024 + 40, |vfs| list(vfs, "many"));
    assert!(text.contains(&root.to_string()) && text.contains("should be"), "{text}");
    let imap = volume.debugfs("imap file-300000");
    let (block, offset) = {
        let words: Vec<&str> = imap.split_whitespace().collect();
        let after = |word: &str| words[words.iter().rposition(|w| *w == word).unwrap() + 1];
        let block: u64 = after("block").trim_end_matches(',').parse().unwrap();
        (block, u64::from_str_radix(after("offset").trim_start_matches("0x"), 16).unwrap())
    };
    let text =
        damage(&volume, block * 1024 + offset + 8, |vfs| vfs.lookup(&who, Ino(2), path("file-300000")).map(drop));
    assert!(text.contains("inode") && text.contains(&block.to_string()) && text.contains("should be"), "{text}");
    let tree: u64 = {
        let text = volume.debugfs("dump_extents sparse");
        let line = text.lines().find(|line| line.trim_start().starts_with("0/")).unwrap();
        line.split_whitespace().rev().nth(1).unwrap().parse().unwrap()
    };
    let text = damage(&volume, tree * 1024 + 20, |vfs| {
        let stat = vfs.lookup(&who, Ino(2), path("sparse"))?;
        vfs.read(stat.ino, 0, &mut [0; 512]).map(drop)
    });
    assert!(text.contains("extent node") && text.contains(&tree.to_string()), "{text}");
}
