//! The failures that `cp` must never have: to destroy its source, leave part of a file, leave its
//! target.

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{
    Format, ORDINARY_USER, Running, Scratch, can_be_user, can_mount, fails, is_root, moafs, moafs_as_user, ok,
};

support::tests_of_both! {
    a_file_is_not_copied_onto_itself,
    a_directory_is_not_copied_onto_or_into_itself,
    the_image_that_is_open_is_neither_copied_nor_replaced,
    a_copy_that_fails_in_the_volume_leaves_the_old_file,
    a_copy_replaces_files_and_links_but_nothing_else,
    names_of_255_bytes_and_deep_trees_are_copied_and_removed,
    holes_stay_holes_both_ways,
}

/// Returns the words of a command line.
fn words(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Vec<std::ffi::OsString> {
    arguments.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// Runs `cp` with these arguments: it fails, and its message has `part`.
fn cp_fails(arguments: &[&dyn AsRef<std::ffi::OsStr>], part: &str) {
    let mut all = words(&[&"cp"]);
    all.extend(words(arguments));
    let (code, message) = fails(&all);
    assert!(code == 1 && message.contains(part), "{all:?}: {code} {message}");
}

/// Checks that no temporary file was left in a host directory or below.
fn assert_no_temporary(dir: &Path) {
    let output = Command::new("find").arg(dir).args(["-name", ".moafs-cp-*"]).output().unwrap();
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn a_file_is_not_copied_onto_itself(format: Format) {
    let scratch = Scratch::with_volume(format);
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::write(tree.join("a"), b"contents").unwrap();
    fs::hard_link(tree.join("a"), tree.join("hard")).unwrap();
    symlink("a", tree.join("soft")).unwrap();
    symlink("../a", tree.join("dir/soft")).unwrap();
    ok(&words(&[&"cp", &"-a", &tree, &scratch.inside("/")]));
    for other in ["a", "hard", "soft", "dir/soft"] {
        let (one, other) = (scratch.inside("/tree/a"), format!("/tree/{other}"));
        cp_fails(&[&one, &scratch.inside(&other)], "same file");
        // The same holds for the host's files.
        cp_fails(&[&tree.join("a"), &scratch.path(&other[1..])], "same file");
    }
    // A link does not take the place of the file it leads to.
    cp_fails(&[&scratch.inside("/tree/soft"), &scratch.inside("/tree/a")], "same file");
    cp_fails(&[&scratch.inside("/tree/a"), &scratch.inside("/tree")], "same file");
    for name in ["a", "hard"] {
        assert_eq!(ok(&["cat", &scratch.inside(&format!("/tree/{name}"))]), "contents");
        assert_eq!(fs::read(tree.join(name)).unwrap(), b"contents");
    }
    assert_eq!(fs::read_link(tree.join("soft")).unwrap(), Path::new("a"));
    scratch.judge();
}

fn a_directory_is_not_copied_onto_or_into_itself(format: Format) {
    let scratch = Scratch::with_volume(format);
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    fs::write(tree.join("sub/file"), b"contents").unwrap();
    symlink("sub/deep", tree.join("way")).unwrap();
    ok(&words(&[&"cp", &"-r", &tree, &scratch.inside("/")]));
    let before = ok(&["ls", "-lRi", &scratch.inside("/tree")]);
    cp_fails(&[&"-r", &scratch.inside("/tree"), &scratch.inside("/")], "same file");
    for below in ["", "/sub", "/sub/deep", "/way", "/sub/new"] {
        cp_fails(&[&"-r", &scratch.inside("/tree"), &scratch.inside(&format!("/tree{below}"))], "into itself");
        cp_fails(&[&"-r", &tree, &scratch.path(&format!("tree{below}"))], "into itself");
    }
    cp_fails(&[&"-r", &tree, &scratch.dir.path()], "same file");
    assert_eq!(ok(&["ls", "-lRi", &scratch.inside("/tree")]), before);
    assert_eq!(fs::read_dir(tree.join("sub")).unwrap().count(), 2);
    // A directory of the same name elsewhere is another one.
    ok(&words(&[&"cp", &"-r", &scratch.inside("/tree/sub"), &scratch.inside("/")]));
    assert_eq!(ok(&["cat", &scratch.inside("/sub/file")]), "contents");
    scratch.judge();
}

fn the_image_that_is_open_is_neither_copied_nor_replaced(format: Format) {
    let scratch = Scratch::with_volume(format);
    let file = scratch.path("f");
    fs::write(&file, b"contents").unwrap();
    ok(&words(&[&"cp", &file, &scratch.inside("/f")]));
    fs::hard_link(scratch.image(), scratch.path("hard.img")).unwrap();
    symlink("disk.img", scratch.path("soft.img")).unwrap();
    let before = fs::read(scratch.image()).unwrap();
    for name in ["disk.img", "hard.img", "soft.img"] {
        cp_fails(&[&scratch.inside("/f"), &scratch.path(name)], "image of a volume that is in use");
        let through = format!("{}:/f", scratch.path(name).display());
        cp_fails(&[&through, &scratch.image()], "image of a volume that is in use");
    }
    assert!(fs::read(scratch.image()).unwrap() == before, "the image was changed");
    // The tree around an image goes into it, but not the image.
    let (code, message) = fails(&words(&[&"cp", &"-r", &scratch.dir.path(), &scratch.inside("/around")]));
    assert!(code == 1 && message.contains("disk.img is the image of a volume that is in use"), "{message}");
    assert_eq!(ok(&["cat", &scratch.inside("/around/f")]), "contents");
    assert_eq!(ok(&["ls", &scratch.inside("/around")]), "f\nsoft.img\n");
    scratch.judge();
}

/// Makes a disk whose one partition holds an ext4 volume.
fn make_partitioned(scratch: &Scratch, count: u32) {
    const FIRST: u32 = 2048;
    let volume = scratch.path("volume");
    ok(&["mkfs", "-q", "-t", "ext4", volume.to_str().unwrap(), "16M"]);
    let volume = fs::read(volume).unwrap();
    let sectors = u32::try_from(volume.len() / 512).unwrap();
    let mut disk = vec![0; FIRST as usize * 512];
    for number in 0..count {
        // An entry of the table: its type, first sector and length.
        let entry = &mut disk[446 + 16 * number as usize..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&(FIRST + number * sectors).to_le_bytes());
        entry[12..16].copy_from_slice(&sectors.to_le_bytes());
    }
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(scratch.image(), [disk, volume.repeat(count as usize)].concat()).unwrap();
}

#[test]
fn files_that_do_not_know_their_size_are_copied_whole() {
    let scratch = Scratch::with_ext2("16M");
    let (file, device) = ("/proc/filesystems", "/sys/kernel/mm/transparent_hugepage/enabled");
    for source in [file, device].into_iter().filter(|source| Path::new(source).exists()) {
        ok(&["cp", source, &scratch.inside("/copy")]);
        assert_eq!(ok(&["cat", &scratch.inside("/copy")]), fs::read_to_string(source).unwrap(), "{source}");
    }
    scratch.judge();
}

#[test]
fn a_destination_that_ends_with_a_slash_is_a_directory() {
    let scratch = Scratch::with_ext2("16M");
    let (file, dir) = (scratch.path("file"), scratch.path("dir"));
    fs::write(&file, b"contents").unwrap();
    fs::create_dir(&dir).unwrap();
    for target in [scratch.inside("/none/"), scratch.path("none/").display().to_string() + "/"] {
        cp_fails(&[&file, &target], "is no directory");
        ok(&words(&[&"cp", &"-r", &dir, &target]));
    }
    ok(&words(&[&"cp", &file, &scratch.inside("/none/")]));
    assert_eq!(ok(&["ls", &scratch.inside("/none")]), "file\n");
}

#[test]
fn files_are_copied_from_partition_to_partition_of_one_disk() {
    let scratch = Scratch::new(Format::Ext4);
    make_partitioned(&scratch, 2);
    let (file, disk) = (scratch.path("file"), scratch.image().display().to_string());
    fs::write(&file, b"contents").unwrap();
    ok(&["cp", file.to_str().unwrap(), &format!("{disk}@1:/one")]);
    let begin = Instant::now();
    ok(&["cp", "-a", &format!("{disk}@1:/one"), &format!("{disk}@2:/two")]);
    assert!(begin.elapsed() < Duration::from_secs(8), "it waited for its own lock");
    assert_eq!(ok(&["cat", &format!("{disk}@2:/two")]), "contents");
    cp_fails(&[&format!("{disk}@1:/none"), &format!("{disk}@2:/x")], "No such file");
    for part in ["1", "2"] {
        ok(&["fsck", "-fn", &format!("{disk}@{part}")]);
    }
}

#[test]
fn files_are_copied_and_moved_within_a_partition_and_its_disk_stays() {
    let scratch = Scratch::new(Format::Ext4);
    make_partitioned(&scratch, 1);
    let (file, disk) = (scratch.path("file"), scratch.image().display().to_string());
    fs::write(&file, b"contents").unwrap();
    let at = |path: &str| format!("{disk}@1:{path}");
    ok(&["cp", file.to_str().unwrap(), &at("/one")]);
    ok(&["cp", &at("/one"), &at("/two")]);
    ok(&["mv", &at("/two"), &at("/three")]);
    assert_eq!(ok(&["cat", &at("/three")]), "contents");
    cp_fails(&[&at("/one"), &disk], "image of a volume that is in use");
    cp_fails(&[&disk, &at("/disk")], "image of a volume that is in use");
    assert_eq!(ok(&["ls", &disk]), "lost+found\none\nthree\n");
    ok(&["fsck", "-fn", &format!("{disk}@1")]);
}

fn a_copy_that_fails_in_the_volume_leaves_the_old_file(format: Format) {
    let scratch = Scratch::with_volume(format);
    let (old, new) = (scratch.path("old"), scratch.path("new"));
    fs::write(&old, b"old contents").unwrap();
    fs::write(&new, vec![1; 160 << 20]).unwrap();
    ok(&words(&[&"cp", &old, &scratch.inside("/file")]));
    ok(&words(&[&"cp", &old, &scratch.inside("/other")]));
    cp_fails(&[&new, &scratch.inside("/file")], "No space left");
    cp_fails(&[&new, &scratch.inside("/fresh")], "No space left");
    assert_eq!(ok(&["cat", &scratch.inside("/file")]), "old contents");
    assert_eq!(ok(&["ls", "-a", &scratch.inside("/")]), "file\nlost+found\nother\n");
    scratch.judge();
    // Files that did not fit took no space.
    fs::File::options().write(true).open(&new).unwrap().set_len(20 << 20).unwrap();
    ok(&words(&[&"cp", &new, &scratch.inside("/file")]));
    scratch.judge();
}

fn a_copy_replaces_files_and_links_but_nothing_else(format: Format) {
    let scratch = Scratch::with_volume(format);
    let (source, target) = (scratch.path("source"), scratch.path("target"));
    fs::create_dir_all(source.join("dir")).unwrap();
    for name in ["file", "link-to-file", "link-to-dir", "link-to-nothing", "fifo"] {
        fs::write(source.join(name), b"new").unwrap();
    }
    fs::create_dir_all(target.join("elsewhere")).unwrap();
    fs::write(target.join("file"), b"old").unwrap();
    fs::set_permissions(target.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(target.join("file"), target.join("hard")).unwrap();
    fs::write(target.join("elsewhere/kept"), b"kept").unwrap();
    symlink("elsewhere/kept", target.join("link-to-file")).unwrap();
    symlink("elsewhere", target.join("link-to-dir")).unwrap();
    symlink("elsewhere", target.join("dir")).unwrap();
    symlink("nothing", target.join("link-to-nothing")).unwrap();
    let status = Command::new("mkfifo").arg(target.join("fifo")).status().unwrap();
    assert!(status.success());
    ok(&words(&[&"cp", &"-a", &target, &scratch.inside("/target")]));
    ok(&words(&[&"cp", &"-a", &source, &scratch.inside("/source")]));
    // Out of the volume over the host's tree, and into the volume over its own.
    for (from, to) in [
        (scratch.inside("/source"), target.display().to_string()),
        (source.display().to_string(), scratch.inside("/target")),
    ] {
        for name in ["file", "link-to-file", "link-to-nothing"] {
            ok(&["cp".to_owned(), format!("{from}/{name}"), format!("{to}/{name}")]);
        }
        let onto = |name: &str| fails(&["cp".to_owned(), "-r".into(), format!("{from}/{name}"), format!("{to}/")]).1;
        assert!(onto("link-to-dir").contains("symbolic link to a directory"));
        assert!(onto("dir").contains("no directory"));
        assert!(onto("fifo").contains("special file"));
        // Named as the target, a link to a directory is that directory.
        ok(&["cp".to_owned(), format!("{from}/file"), format!("{to}/link-to-dir")]);
    }
    ok(&words(&[&"cp", &"-a", &scratch.inside("/target"), &scratch.path("back")]));
    for tree in [target, scratch.path("back")] {
        let read = |name: &str| fs::read_to_string(tree.join(name)).unwrap();
        assert_eq!([read("file"), read("hard"), read("elsewhere/kept")], ["new", "old", "kept"]);
        assert_eq!([read("link-to-file"), read("link-to-nothing"), read("elsewhere/file")], ["new", "new", "new"]);
        assert!(!tree.join("link-to-file").is_symlink() && tree.join("link-to-dir").is_symlink());
        assert!(tree.join("dir").is_symlink());
        // A file that takes another one's place is no more open than that was.
        assert_eq!(tree.join("file").metadata().unwrap().mode() & 0o7777, 0o640);
        assert_no_temporary(&tree);
    }
    scratch.judge();
}

fn names_of_255_bytes_and_deep_trees_are_copied_and_removed(format: Format) {
    let scratch = Scratch::with_volume(format);
    let long = "n".repeat(255);
    let tree = scratch.path("tree");
    fs::create_dir(&tree).unwrap();
    // As deep as a path may be long on the host, and deeper by copying that into itself twice.
    let mut at = tree.clone();
    (0..1500).for_each(|_| at.push("d"));
    fs::create_dir_all(&at).unwrap();
    fs::write(tree.join(&long), b"long").unwrap();
    fs::write(at.join("bottom"), b"deep").unwrap();
    ok(&words(&[&"cp", &"-a", &tree, &scratch.inside("/")]));
    let deep = "/d".repeat(1500);
    ok(&words(&[&"cp", &"-r", &tree, &scratch.inside(&format!("/tree{deep}"))]));
    assert_eq!(ok(&["cat", &scratch.inside(&format!("/tree{deep}/tree{deep}/bottom"))]), "deep");
    assert_eq!(ok(&["cat", &scratch.inside(&format!("/tree{deep}/tree/{long}"))]), "long");
    let listing = ok(&["ls", "-R", "--json", &scratch.inside("/tree")]);
    let entries: serde_json::Value = serde_json::from_str(&listing).unwrap();
    assert_eq!(entries["files"].as_array().unwrap().len(), 2 * (1500 + 2) + 1);
    let out = scratch.path("out");
    ok(&words(&[&"cp", &"-a", &scratch.inside("/tree"), &out]));
    assert_eq!(fs::read(out.join(&long)).unwrap(), b"long");
    // Host to host, as deep as no path reaches; std removes it level by level.
    ok(&words(&[&"cp", &"-r", &out, &scratch.path("again")]));
    let count = Command::new("find").arg(scratch.path("again")).args(["-name", "bottom"]).output().unwrap();
    assert_eq!(count.stdout.iter().filter(|byte| **byte == b'\n').count(), 2);
    ok(&["rm", "-r", &scratch.inside("/tree")]);
    scratch.judge();
}

fn holes_stay_holes_both_ways(format: Format) {
    let scratch = Scratch::with_volume(format);
    let (sparse, back) = (scratch.path("sparse"), scratch.path("back"));
    let file = fs::File::create(&sparse).unwrap();
    for at in [5_u64 << 20, 1 << 30, 6 << 30] {
        file.write_all_at(b"island", at).unwrap();
    }
    file.set_len(7 << 30).unwrap();
    ok(&words(&[&"cp", &sparse, &scratch.inside("/sparse")]));
    ok(&words(&[&"cp", &scratch.inside("/sparse"), &scratch.inside("/again")]));
    ok(&words(&[&"cp", &scratch.inside("/again"), &back]));
    let meta = back.metadata().unwrap();
    assert_eq!(meta.len(), 7 << 30);
    assert!(meta.blocks() < 2048, "the holes were filled: {} sectors", meta.blocks());
    let file = fs::File::open(&back).unwrap();
    for at in [5_u64 << 20, 1 << 30, 6 << 30] {
        let mut island = [0; 6];
        file.read_exact_at(&mut island, at).unwrap();
        assert_eq!(&island, b"island");
    }
    scratch.judge();
}

#[test]
fn a_copy_that_fails_on_the_host_leaves_the_old_file() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(Format::Ext2);
    let new = scratch.path("new");
    fs::write(&new, vec![1; 8 << 20]).unwrap();
    ok(&words(&[&"cp", &new, &scratch.inside("/file")]));
    let full = scratch.path("full");
    fs::create_dir(&full).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1M", "none"]).arg(&full).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: tmpfs cannot be mounted");
        return;
    }
    fs::write(full.join("file"), b"old").unwrap();
    let (code, message) = fails(&words(&[&"cp", &scratch.inside("/file"), &full]));
    let (_, again) = fails(&words(&[&"cp", &scratch.inside("/file"), &full.join("fresh")]));
    let left: Vec<_> = fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let kept = fs::read(full.join("file"));
    assert!(Command::new("umount").arg(&full).status().unwrap().success());
    assert!(code == 1 && message.contains("No space") && message.contains("full/file"), "{message}");
    assert!(again.contains("No space"), "{again}");
    assert_eq!(kept.unwrap(), b"old");
    assert_eq!(left, ["file"]);
}

/// Starts a copy of a file to `target`, and interrupts it while the copy has its temporary name.
fn interrupt(arguments: &[std::ffi::OsString], target: &Path) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    let mut copy = Running(command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    while fs::read_dir(target).unwrap().count() < 2 && copy.0.try_wait().unwrap().is_none() {}
    if copy.0.try_wait().unwrap().is_none() {
        copy.signal(libc::SIGINT);
    }
    copy.exit_code()
}

#[test]
fn an_interrupted_copy_leaves_the_old_file_and_nothing_else() {
    let scratch = Scratch::with_ext2("600M");
    let (new, target) = (scratch.path("new"), scratch.path("target"));
    fs::write(&new, vec![1; 300 << 20]).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("new"), b"old").unwrap();
    // Out of the volume.
    ok(&words(&[&"cp", &new, &scratch.inside("/new")]));
    let code = interrupt(&words(&[&"cp", &scratch.inside("/new"), &target]), &target);
    let names: Vec<_> = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["new"]);
    assert_eq!(code, Some(130), "it was not interrupted in time");
    assert_eq!(fs::read(target.join("new")).unwrap(), b"old");
    // Into it: the volume is closed in good order.
    ok(&words(&[&"cp", &target.join("new"), &scratch.inside("/old")]));
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    let arguments = words(&[&"cp", &new, &scratch.inside("/old")]);
    let mut copy = Running(command.args(arguments).stderr(Stdio::null()).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    copy.signal(libc::SIGINT);
    assert_eq!(copy.exit_code(), Some(130), "it was not interrupted in time");
    assert_eq!(ok(&["cat", &scratch.inside("/old")]), "old");
    assert!(!ok(&["ls", "-a", &scratch.inside("/")]).contains(".moafs-cp-"));
    scratch.judge();
}

/// Runs `work` while another thread does `disturb` again and again.
fn while_disturbed(disturb: impl Fn() + Send + Sync, work: impl FnOnce()) {
    /// Stops the other thread when it goes, also in a panic.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                disturb();
            }
        });
        let _end = End(&end);
        work();
    });
}

/// Swaps two names, one for the other.
fn exchange(one: &Path, other: &Path) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
}

/// Returns everything about a tree that an extraction elsewhere must not change.
fn state_of(dir: &Path) -> Vec<(PathBuf, u32, u32, i64, i64)> {
    let mut all = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(path) = pending.pop() {
        let meta = path.symlink_metadata().unwrap();
        all.push((path.clone(), meta.mode(), meta.uid(), meta.mtime(), meta.ctime_nsec()));
        if meta.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    all.sort();
    all
}

#[test]
fn an_extraction_stays_in_its_directory_while_others_change_it() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::with_ext2("64M");
    let tree = scratch.path("a");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    for i in 0..300 {
        fs::write(tree.join(format!("sub/{i}")), b"x").unwrap();
        fs::write(tree.join(format!("sub/deep/{i}")), b"x").unwrap();
        symlink("nothing", tree.join(format!("sub/deep/l{i}"))).unwrap();
        fs::set_permissions(tree.join(format!("sub/{i}")), fs::Permissions::from_mode(0o666)).unwrap();
    }
    std::os::unix::fs::chown(tree.join("sub"), Some(1234), Some(1234)).unwrap();
    ok(&words(&[&"cp", &"-a", &tree, &scratch.inside("/")]));
    let victim = scratch.path("victim");
    fs::create_dir_all(victim.join("deep")).unwrap();
    for i in 0..300 {
        fs::write(victim.join(format!("{i}")), b"secret").unwrap();
        fs::set_permissions(victim.join(format!("{i}")), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let before = state_of(&victim);
    for round in 0..6 {
        let out = scratch.path(&format!("out{round}"));
        fs::create_dir_all(out.join("a")).unwrap();
        std::os::unix::fs::chown(&out, Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
        std::os::unix::fs::chown(out.join("a"), Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
        let (swap, sub) = (out.join("swap"), out.join("a/sub"));
        symlink(&victim, &swap).unwrap();
        while_disturbed(
            || exchange(&swap, &sub),
            || {
                // It may fail, and must end.
                let mut command = Command::new("timeout");
                command
                    .arg("60")
                    .arg(env!("CARGO_BIN_EXE_moafs"))
                    .args(["cp", if round % 2 == 0 { "-r" } else { "-a" }]);
                let output = command.arg(scratch.inside("/a")).arg(&out).output().unwrap();
                assert_ne!(output.status.code(), Some(124));
            },
        );
        assert_eq!(state_of(&victim), before, "round {round}: it wrote elsewhere");
    }
}

#[test]
fn a_copy_into_a_volume_neither_follows_nor_waits_for_what_a_file_was_swapped_for() {
    let scratch = Scratch::with_ext2("64M");
    let tree = scratch.path("tree");
    let (secret, fifo) = (scratch.path("secret"), scratch.path("fifo"));
    fs::write(&secret, b"the secret").unwrap();
    for round in 0..6 {
        let _ = fs::remove_dir_all(&tree);
        let _ = fs::remove_file(&fifo);
        fs::create_dir(&tree).unwrap();
        for i in 0..200 {
            fs::write(tree.join(format!("{i:03}")), b"plain").unwrap();
        }
        if round % 2 == 0 {
            symlink(&secret, &fifo).unwrap();
        } else {
            assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        }
        let at = std::sync::atomic::AtomicUsize::new(0);
        while_disturbed(
            || {
                let name = tree.join(format!("{:03}", at.fetch_add(1, Ordering::Relaxed) / 8 % 200));
                exchange(&name, &fifo);
                exchange(&name, &fifo);
            },
            || {
                support::moafs_in_time(&words(&[&"cp", &"-r", &tree, &scratch.inside(&format!("/{round}"))]));
            },
        );
        let out = scratch.path(&format!("out{round}"));
        ok(&words(&[&"cp", &"-r", &scratch.inside(&format!("/{round}")), &out]));
        for entry in fs::read_dir(&out).unwrap().map(Result::unwrap) {
            let meta = entry.path().symlink_metadata().unwrap();
            assert!(meta.is_symlink() || fs::read(entry.path()).unwrap() == b"plain", "{:?}", entry.path());
        }
    }
}

#[test]
fn names_in_an_image_do_not_lead_out_of_the_target() {
    for evil in [&b"../evil12"[..], b"/tmp/evil", b"ab\0defghi"] {
        let scratch = Scratch::with_ext2("16M");
        let tree = scratch.path("tree");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("placehold"), b"x").unwrap();
        ok(&words(&[&"cp", &"-r", &tree, &scratch.inside("/")]));
        let mut bytes = fs::read(scratch.image()).unwrap();
        let places: Vec<usize> = (0..bytes.len() - 9).filter(|at| &bytes[*at..at + 9] == b"placehold").collect();
        assert!(!places.is_empty());
        places.iter().for_each(|at| bytes[*at..at + 9].copy_from_slice(evil));
        fs::write(scratch.image(), bytes).unwrap();
        let out = scratch.path("out/in");
        fs::create_dir_all(&out).unwrap();
        let (code, message) = fails(&words(&[&"cp", &"-r", &scratch.inside("/tree"), &out]));
        assert_eq!(code, 1, "{message}");
        assert!(!message.contains("panicked"), "{message}");
        assert_eq!(fs::read_dir(scratch.path("out")).unwrap().count(), 1);
        assert!(!Path::new("/tmp/evil").exists());
    }
}

#[test]
fn cp_a_by_an_ordinary_user_does_what_cp_does() {
    if !can_be_user() {
        return;
    }
    let scratch = Scratch::with_ext2("32M");
    let tree = scratch.path("tree");
    fs::create_dir(&tree).unwrap();
    for (name, mode, uid) in
        [("suid", 0o4755, 0), ("sgid", 0o2755, 0), ("own", 0o6751, ORDINARY_USER), ("plain", 0o604, 7)]
    {
        fs::write(tree.join(name), name).unwrap();
        std::os::unix::fs::chown(tree.join(name), Some(uid), Some(uid)).unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
        let past = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        fs::File::options().write(true).open(tree.join(name)).unwrap().set_modified(past).unwrap();
    }
    symlink("plain", tree.join("link")).unwrap();
    let xattr = rustix::fs::setxattr(tree.join("plain"), "user.kept", b"value", rustix::fs::XattrFlags::empty());
    let _ = rustix::fs::setxattr(tree.join("suid"), "trusted.lost", b"value", rustix::fs::XattrFlags::empty());
    ok(&words(&[&"cp", &"-a", &tree, &scratch.inside("/")]));
    let home = scratch.path("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(ORDINARY_USER), Some(ORDINARY_USER)).unwrap();
    for path in [scratch.dir.path().to_owned(), scratch.image(), tree.clone()] {
        let mode = path.metadata().unwrap().mode() | 0o555;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let output = moafs_as_user(&words(&[&"cp", &"-a", &scratch.inside("/tree"), &home.join("ours")]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    let theirs = {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("cp");
        command.arg("-a").arg(&tree).arg(home.join("theirs")).uid(ORDINARY_USER).gid(ORDINARY_USER).output().unwrap()
    };
    assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
    for name in ["", "suid", "sgid", "own", "plain", "link"] {
        let of = |whose: &str| home.join(whose).join(name).symlink_metadata().unwrap();
        let (ours, theirs) = (of("ours"), of("theirs"));
        assert_eq!(
            (format!("{:o}", ours.mode()), ours.uid(), ours.gid(), ours.mtime()),
            (format!("{:o}", theirs.mode()), theirs.uid(), theirs.gid(), theirs.mtime()),
            "{name}"
        );
    }
    if xattr.is_ok() {
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(home.join("ours/plain"), "user.kept", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"value");
    }
    // Making a file that only root can make is an error, as for cp.
    let refused = moafs_as_user(&words(&[&"cp", &"-a", &scratch.inside("/tree/plain"), &tree.join("refused")]));
    assert_eq!(refused.status.code(), Some(1));
}

#[test]
fn a_source_that_is_missing_does_not_keep_others_from_being_copied() {
    let scratch = Scratch::with_ext2("16M");
    let (one, two) = (scratch.path("one"), scratch.path("two"));
    fs::create_dir_all(&two).unwrap();
    fs::write(&one, b"1").unwrap();
    fs::write(two.join("one"), b"2").unwrap();
    let (code, message) =
        fails(&words(&[&"cp", &scratch.path("missing"), &one, &two.join("one"), &scratch.inside("/")]));
    assert_eq!(code, 1);
    assert!(message.contains("missing: No such file") && message.contains("was just copied"), "{message}");
    assert_eq!(ok(&["cat", &scratch.inside("/one")]), "1");
}

#[test]
fn a_map_does_not_replace_the_image_it_shows() {
    let scratch = Scratch::with_ext2("16M");
    let image = scratch.path("disk.svg");
    fs::rename(scratch.image(), &image).unwrap();
    let (_, message) = fails(&words(&[&"map", &image, &"-o", &image]));
    assert!(message.contains("same file"), "{message}");
    ok(&words(&[&"ls", &image]));
}

#[test]
fn an_image_that_shrinks_while_it_is_read_is_an_error() {
    let scratch = Scratch::with_ext2("64M");
    let new = scratch.path("new");
    fs::write(&new, vec![1; 30 << 20]).unwrap();
    ok(&words(&[&"cp", &new, &scratch.inside("/new")]));
    let target = scratch.path("target");
    fs::create_dir(&target).unwrap();
    // Cut before it is opened: the end is missing.
    fs::File::options().write(true).open(scratch.image()).unwrap().set_len(8 << 20).unwrap();
    let output = moafs(&words(&[&"cp", &scratch.inside("/new"), &target]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && !said.contains("panicked"), "{said}");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let scratch = Scratch::with_ext2("16M");
    let tree = scratch.path("tree");
    fs::create_dir(&tree).unwrap();
    let evil = std::ffi::OsStr::from_bytes(b"e\x1b[2Jv\nil\xff");
    fs::write(tree.join(evil), b"x").unwrap();
    fs::write(tree.join("c1\u{9b}31m"), b"x").unwrap();
    ok(&words(&[&"cp", &"-r", &tree, &scratch.inside("/")]));
    // Exact bytes where a program reads them.
    let listed = moafs(&words(&[&"ls", &scratch.inside("/tree")])).stdout;
    assert_eq!(listed, b"c1\xc2\x9b31m\ne\x1b[2Jv\nil\xff\n");
    assert_eq!(moafs(&words(&[&"ls", &"-q", &scratch.inside("/tree")])).stdout, b"c1?31m\ne?[2Jv?il?\n");
    let json = moafs(&words(&[&"ls", &"--json", &scratch.inside("/tree")])).stdout;
    let json = String::from_utf8(json).unwrap();
    assert!(!json.chars().any(|char| char.is_control() && char != '\n'), "{json:?}");
    let entries: serde_json::Value = serde_json::from_str(&json).unwrap();
    let entries = &entries["files"];
    assert_eq!(entries[0]["path"], "/tree/c1\u{9b}31m");
    assert_eq!(entries[1]["path_hex"], "2f747265652f651b5b324a760a696cff");
    // Messages about them, of every kind.
    for arguments in [
        words(&[&"cat", &scratch.inside("/tree\x1b[31m")]),
        words(&[&"ls", &"no\x1b[31m.img:/"]),
        words(&[&"cp", &scratch.path("no\x1b]0;title\x07"), &scratch.inside("/")]),
        words(&[&"cp", &scratch.inside("/tree"), &scratch.inside("/x\nmoafs: all is well")]),
        words(&[&"rm", &scratch.inside("/n\x1bo\n")]),
        words(&[&"fsck", &"no\x1b[31m.img"]),
        words(&[&"mount", &"no\x1b[31m.img", &"/no\x1b[31m"]),
        words(&[&"info", &"no\x1b[31m.img"]),
    ] {
        let (_, message) = fails(&arguments);
        assert!(!message.chars().any(|char| char.is_control() && char != '\n'), "{message:?}");
        assert!(!message.contains("\nmoafs: all is well"), "{message}");
    }
}

#[test]
fn new_images_are_readable_by_their_owner_only() {
    for format in [Format::Ext2, Format::F2fs] {
        let scratch = Scratch::with_volume(format);
        assert_eq!(scratch.image().metadata().unwrap().mode() & 0o777, 0o600);
    }
}
