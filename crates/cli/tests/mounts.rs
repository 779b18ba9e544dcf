//! Real mounts, made and ended in all the ways that exist.

mod support;

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{
    Format, LoopDevice, Mounted, Running, Scratch, can_loop, can_mount, fails, is_detached, is_mounted, moafs, ok,
    wait_until,
};

support::tests_of_both! {
    what_is_written_is_there_after_umount,
    the_image_can_be_used_right_after_umount8,
    umount_waits_for_the_daemon_of_an_image_that_the_mount_table_does_not_name,
    the_control_directory_is_there_and_hidden,
    names_and_attributes_stay_true_under_change,
    a_second_user_of_the_image_is_refused,
    a_mounted_volume_is_looked_at_through_its_mount,
    a_busy_mount_stays_unless_it_may_go_lazily,
    sigterm_unmounts_cleanly,
    a_killed_daemon_leaves_a_mount_that_can_be_cleared_and_a_volume_that_mounts,
    options_are_followed_or_refused_with_the_nearest,
    mount_helpers_take_the_arguments_of_mount8,
    attributes_of_all_kinds_survive,
}

/// Starts a mount in the foreground and waits until it stands.
fn in_foreground(scratch: &Scratch, options: &str) -> (Running, Mounted) {
    let target = scratch.path("mnt");
    fs::create_dir_all(&target).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    command.args(["mount", "-f"]).args((!options.is_empty()).then(|| format!("-o{options}")));
    let child = command.arg(scratch.image()).arg(&target).stdin(Stdio::null()).spawn().unwrap();
    wait_until("mounting", || is_mounted(&target));
    (Running(child), Mounted { target })
}

fn what_is_written_is_there_after_umount(format: Format) {
    for options in ["", "plain", "transport=dev", "buffered,noatime"] {
        if !can_mount() {
            return;
        }
        let scratch = Scratch::with_volume(format);
        let mounted = Mounted::new(&scratch, options);
        fs::create_dir(mounted.path("dir")).unwrap();
        fs::write(mounted.path("dir/file"), vec![9; 100_000]).unwrap();
        fs::rename(mounted.path("dir/file"), mounted.path("file")).unwrap();
        mounted.unmount();
        assert!(is_detached(&scratch.image()));
        assert_eq!(ok(&["cat", &scratch.inside("/file")]).len(), 100_000, "{options}");
        scratch.judge();
    }
}

fn the_image_can_be_used_right_after_umount8(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    fs::write(mounted.path("file"), b"x").unwrap();
    let umount = || Command::new("umount").arg(&mounted.target).status().unwrap().success();
    wait_until("umount(8)", umount);
    assert_eq!(ok(&["cat", &scratch.inside("/file")]), "x");
    let again = Mounted::new(&scratch, "");
    wait_until("umount(8)", umount);
    ok(&["fsck".as_ref(), "-fy".as_ref(), scratch.image().as_os_str()]);
    drop(again);
}

fn umount_waits_for_the_daemon_of_an_image_that_the_mount_table_does_not_name(format: Format) {
    if !can_mount() {
        return;
    }
    for (options, to) in
        [("plain,fsname=other", "disk.img"), ("plain", "renamed.img"), ("plain,fsname=other", "renamed.img")]
    {
        let scratch = Scratch::with_volume(format);
        let (mut daemon, mounted) = in_foreground(&scratch, options);
        fs::write(mounted.path("file"), vec![7; 30 << 20]).unwrap();
        let image = scratch.path(to);
        fs::rename(scratch.image(), &image).unwrap();
        mounted.unmount();
        let lock = fs::File::open(&image).unwrap();
        let locked = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert!(locked.is_ok(), "{options}, {to}: the daemon still holds the image");
        drop(lock);
        assert_eq!(daemon.exit_code(), Some(0));
        fs::rename(&image, scratch.image()).unwrap();
        scratch.judge();
    }
}

fn the_control_directory_is_there_and_hidden(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    let names: Vec<_> = fs::read_dir(&mounted.target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["lost+found"]);
    let before = mounted.stats();
    assert_eq!((&before["format"], &before["failed"]), (&format.name().into(), &serde_json::Value::Null));
    fs::write(mounted.path("file"), b"x").unwrap();
    let after = mounted.stats();
    assert!(after["vfs"]["creates"].as_u64() > before["vfs"]["creates"].as_u64());
    let inside: Vec<_> = fs::read_dir(mounted.path(".moafs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(inside, ["stats", "defrag", "swap", "layout"]);
    let errno = |result: io::Result<()>| result.unwrap_err().raw_os_error();
    assert_eq!(errno(fs::create_dir(mounted.path(".moafs"))), Some(libc::EEXIST));
    assert_eq!(errno(fs::remove_dir(mounted.path(".moafs"))), Some(libc::EPERM));
    assert_eq!(errno(fs::rename(mounted.path("file"), mounted.path(".moafs"))), Some(libc::EISDIR));
    assert_eq!(errno(fs::write(mounted.path(".moafs/new"), b"")), Some(libc::EPERM));
    let text = ok(&["stat".as_ref(), mounted.target.as_os_str()]);
    assert!(text.contains("vfs.creates"), "{text}");
    assert_eq!(text.contains("engine.checkpoints"), format == Format::F2fs, "{text}");
    ok(&["top".as_ref(), "-n1".as_ref(), "-i0.05".as_ref(), mounted.target.as_os_str()]);
    mounted.unmount();
}

fn names_and_attributes_stay_true_under_change(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    let (one, two) = (mounted.path("one"), mounted.path("two"));
    assert!(!one.exists());
    fs::write(&one, b"1").unwrap();
    assert!(one.exists() && !two.exists());
    fs::hard_link(&one, &two).unwrap();
    assert_eq!(one.metadata().unwrap().nlink(), 2);
    fs::remove_file(&one).unwrap();
    assert_eq!((two.metadata().unwrap().nlink(), one.exists()), (1, false));
    // An open file without a name lives on.
    let open = fs::File::options().read(true).write(true).open(&two).unwrap();
    fs::remove_file(&two).unwrap();
    open.write_all_at(b"still here", 0).unwrap();
    let mut text = [0; 10];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"still here");
    drop(open);
    // More entries than one reply holds.
    let many = mounted.path("many");
    fs::create_dir(&many).unwrap();
    for number in 0..3000 {
        fs::write(many.join(format!("a file with a rather long name, number {number}")), b"").unwrap();
    }
    let listed: std::collections::BTreeSet<_> = fs::read_dir(&many).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(listed.len(), 3000);
    fs::remove_dir_all(&many).unwrap();
    mounted.unmount();
    scratch.judge();
}

fn a_second_user_of_the_image_is_refused(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    let image = scratch.image().display().to_string();
    let (code, message) = fails(&["mount", &image, &other.display().to_string()]);
    assert!(code == 32 && message.contains("in use"), "{code}: {message}");
    for command in [&["fsck", "-y", &image][..], &["mkfs", "-F", &image], &["mkdir", &image, "/x"]] {
        let (_, message) = fails(command);
        assert!(message.contains("in use"), "{command:?}: {message}");
    }
    let target = mounted.target.display().to_string();
    for command in
        [&["rm", &image, "/x"][..], &["mkfs", "-F", &image], &["mount", &image, &other.display().to_string()]]
    {
        let (_, message) = fails(command);
        assert!(message.contains(&format!("mounted on {target}")), "{command:?}: {message}");
    }
    mounted.unmount();
    ok(&["rm", "-f", &image, "/x"]);
}

fn a_mounted_volume_is_looked_at_through_its_mount(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    fs::create_dir(mounted.path("dir")).unwrap();
    fs::write(mounted.path("dir/file"), b"not on the image yet").unwrap();
    std::os::unix::fs::symlink("/dir", mounted.path("link")).unwrap();
    std::os::unix::fs::symlink("/etc", mounted.path("out")).unwrap();
    let at = |path: &str| scratch.inside(path);
    assert_eq!(ok(&["cat", &at("/dir/file"), &at("/link/file")]), "not on the image yet".repeat(2));
    assert_eq!(ok(&["ls", &at("/dir"), &at("/link")]), "/dir:\nfile\n\n/link:\nfile\n");
    let stat: serde_json::Value = serde_json::from_str(&ok(&["stat", "--json", &at("/dir/file")])).unwrap();
    assert_eq!((&stat["size"], &stat["kind"], &stat["runs"]), (&20.into(), &"file".into(), &serde_json::Value::Null));
    assert_eq!(stat["ino"], mounted.path("dir/file").metadata().unwrap().ino());
    assert_eq!(ok(&["du", "-d", "0", &at("/dir")]).lines().count(), 1);
    ok(&["get", "-a", &at("/"), scratch.path("back").to_str().unwrap()]);
    let back = |path: &str| scratch.path("back").join(path);
    assert_eq!(fs::read(back("dir/file")).unwrap(), b"not on the image yet");
    assert!(back("link").is_symlink() && !back(".moafs").exists());
    ok(&["cp", "-L", &at("/link/file"), back("followed").to_str().unwrap()]);
    assert!(back("followed").is_file());
    // No path and no link leads out of the volume.
    for path in ["/out/passwd", "/../../etc/passwd", "/none"] {
        assert!(fails(&["cat", &at(path)]).1.contains("No such file"), "{path}");
    }
    mounted.unmount();
    assert_eq!(ok(&["cat", &at("/link/file")]), "not on the image yet");
    scratch.judge();
}

#[test]
fn umount_leaves_alone_what_covers_a_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(Format::Ext4);
    let mounted = Mounted::new(&scratch, "");
    let Some(cover) = Cover::new(&mounted.target) else { return };
    fs::write(mounted.path("over"), b"x").unwrap();
    for way in [&["umount"][..], &["umount", "--lazy"]] {
        let (code, message) = fails(&[way, &[mounted.target.to_str().unwrap()]].concat());
        assert!(code == 32 && message.contains("covered by another mount (tmpfs)"), "{code}: {message}");
    }
    assert!(mounted.path("over").exists());
    drop(cover);
    mounted.unmount();
}

/// A file system in memory that covers what is mounted on a directory; unmounted when the value is dropped.
struct Cover(PathBuf);

impl Cover {
    /// Returns `None`, with a message, if there is no tmpfs.
    fn new(at: &Path) -> Option<Cover> {
        let mounted = rustix::mount::mount("cover", at, "tmpfs", rustix::mount::MountFlags::empty(), None);
        mounted.map_err(|error| eprintln!("SKIPPED: no tmpfs: {error}")).ok().map(|()| Cover(at.to_owned()))
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn a_busy_mount_stays_unless_it_may_go_lazily(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    let open = fs::File::create(mounted.path("open")).unwrap();
    let (code, message) = fails(&["umount".as_ref(), mounted.target.as_os_str()]);
    assert!(code == 32 && message.contains("busy") && message.contains("--lazy"), "{code}: {message}");
    ok(&["umount".as_ref(), "--lazy".as_ref(), mounted.target.as_os_str()]);
    assert!(!is_mounted(&mounted.target));
    open.write_all_at(b"late", 0).unwrap();
    drop(open);
    wait_until("the release of the image", || moafs(&["ls", &scratch.inside("/")]).status.success());
    assert_eq!(ok(&["cat", &scratch.inside("/open")]), "late");
}

fn sigterm_unmounts_cleanly(format: Format) {
    if !can_mount() {
        return;
    }
    for (options, signal) in [("", libc::SIGTERM), ("plain", libc::SIGINT)] {
        let scratch = Scratch::with_volume(format);
        let (mut daemon, mounted) = in_foreground(&scratch, options);
        fs::write(mounted.path("file"), b"written").unwrap();
        daemon.signal(signal);
        assert_eq!(daemon.exit_code(), Some(0));
        assert!(!is_mounted(&mounted.target));
        assert_eq!(ok(&["cat", &scratch.inside("/file")]), "written");
        scratch.judge();
    }
}

fn a_killed_daemon_leaves_a_mount_that_can_be_cleared_and_a_volume_that_mounts(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let (mut daemon, mounted) = in_foreground(&scratch, "");
    let file = fs::File::create(mounted.path("file")).unwrap();
    file.write_all_at(b"durable", 0).unwrap();
    file.sync_all().unwrap();
    daemon.signal(libc::SIGKILL);
    daemon.exit_code();
    let errno = fs::metadata(mounted.path("x")).unwrap_err().raw_os_error();
    // Over io_uring the kernel cancels what waits for the daemon before it gives the mount up.
    assert!(matches!(errno, Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)), "{errno:?}");
    drop(file);
    ok(&["umount".as_ref(), mounted.target.as_os_str()]);
    assert!(!is_mounted(&mounted.target));
    wait_until("detaching the loop device", || is_detached(&scratch.image()));
    let again = Mounted::new(&scratch, "");
    assert_eq!(fs::read(again.path("file")).unwrap(), b"durable");
    again.unmount();
}

fn options_are_followed_or_refused_with_the_nearest(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let image = scratch.image().display().to_string();
    let target = scratch.path("mnt");
    fs::create_dir(&target).unwrap();
    let (code, message) = fails(&["mount", "-o", "cahce=1M", &image, &target.display().to_string()]);
    assert!(code == 1 && message.contains("do you mean `cache`?"), "{code}: {message}");
    let (code, message) = fails(&["mount", &image, "/no/such/dir"]);
    assert!(code == 32 && message.contains("/no/such/dir"), "{code}: {message}");
    let (code, message) = fails(&["mount", "/no/such/image", &target.display().to_string()]);
    assert!(code == 32 && message.contains("/no/such/image"), "{code}: {message}");
    let empty = scratch.path("empty").display().to_string();
    fs::write(&empty, [0; 100_000]).unwrap();
    for how in [&["mount"][..], &["mount", "-f"]] {
        let all = [how, &[empty.as_str(), target.to_str().unwrap()]].concat();
        let (code, message) = fails(&all);
        assert!(code == 32 && message.contains("holds no ext2"), "{code}: {message}");
    }
    let mounted = Mounted::new(&scratch, "ro,cache=32M,threads=2");
    let refused = fs::write(mounted.path("file"), b"").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(mounted.stats()["options"][0], "ro");
    mounted.unmount();
    scratch.judge();
}

fn mount_helpers_take_the_arguments_of_mount8(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let helpers = scratch.path("sbin");
    fs::create_dir(&helpers).unwrap();
    ok(&["helpers".as_ref(), "--install".as_ref(), "--dir".as_ref(), helpers.as_os_str()]);
    let target = scratch.path("mnt");
    fs::create_dir(&target).unwrap();
    let helper = |extra: &str| {
        let mut command = Command::new(helpers.join("mount.fuse.moafs"));
        command.arg(scratch.image()).arg(&target).arg(extra).args(["-o", "rw,noatime,nofail"]).status().unwrap()
    };
    assert!(helper("-f").success());
    assert!(!is_mounted(&target), "-f mounts nothing");
    assert!(helper("-n").success());
    let mounted = Mounted { target };
    assert!(is_mounted(&mounted.target));
    mounted.unmount();
    let checked = Command::new(helpers.join("fsck.moafs")).arg("-n").arg(scratch.image()).output().unwrap();
    assert_eq!(checked.status.code(), Some(0));
    ok(&["helpers".as_ref(), "--remove".as_ref(), "--dir".as_ref(), helpers.as_os_str()]);
    assert!(fs::read_dir(&helpers).unwrap().next().is_none());
}

fn attributes_of_all_kinds_survive(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(format);
    let mounted = Mounted::new(&scratch, "");
    let file = mounted.path("file");
    fs::write(&file, vec![1; 10_000]).unwrap();
    let mut value = [0; 16];
    rustix::fs::setxattr(&file, "user.colour", b"green", rustix::fs::XattrFlags::CREATE).unwrap();
    let len = rustix::fs::getxattr(&file, "user.colour", &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"green");
    let short = rustix::fs::getxattr(&file, "user.colour", &mut value[..2]);
    assert_eq!(short.unwrap_err(), rustix::io::Errno::RANGE);
    let open = fs::File::options().read(true).write(true).open(&file).unwrap();
    rustix::fs::ioctl_setflags(&open, rustix::fs::IFlags::NODUMP).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&open).unwrap(), rustix::fs::IFlags::NODUMP);
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&open, punch, 4096, 4096).unwrap();
    assert_eq!(fs::read(&file).unwrap()[4096..8192], [0; 4096]);
    let moved = rustix::fs::renameat_with(
        rustix::fs::CWD,
        &file,
        rustix::fs::CWD,
        mounted.path("lost+found"),
        rustix::fs::RenameFlags::NOREPLACE,
    );
    assert_eq!(moved.unwrap_err(), rustix::io::Errno::EXIST);
    assert!(file.metadata().unwrap().created().is_ok(), "no birth time");
    drop(open);
    mounted.unmount();
    scratch.judge();
}

#[test]
fn a_mounted_device_is_claimed_whatever_the_type_of_the_mount() {
    if !can_mount() || !can_loop() {
        return;
    }
    let scratch = Scratch::with_volume(Format::Ext4);
    let device = LoopDevice::attach(&scratch.image(), &[]);
    let claim = || fs::File::options().read(true).custom_flags(libc::O_EXCL).open(device.path());
    let target = scratch.path("mnt");
    fs::create_dir(&target).unwrap();
    let (path, dir) = (device.path().display().to_string(), target.display().to_string());
    // Each round waits for what the one before it is about to release.
    for options in ["plain", "rw", "plain,ro"] {
        ok(&["mount", "-o", options, &path, &dir]);
        let mounted = Mounted { target: target.clone() };
        assert_eq!(claim().unwrap_err().raw_os_error(), Some(libc::EBUSY), "{options}");
        mounted.unmount();
    }
    wait_until("the release of the device", || claim().is_ok());
    scratch.judge();
}

#[test]
fn options_of_one_format_are_refused_on_the_other() {
    if !can_mount() {
        return;
    }
    for (format, option, words) in [
        (Format::Ext2, "cleaner=greedy", "for f2fs volumes"),
        (Format::F2fs, "place=cowrite", "for ext volumes"),
        (Format::F2fs, "cleaner=lru", "cost-benefit"),
        (Format::F2fs, "clean_batch=0", "from 1 to 64"),
        (Format::F2fs, "background_gc=sync", "on or off"),
    ] {
        let scratch = Scratch::with_volume(format);
        let target = scratch.path("mnt");
        fs::create_dir(&target).unwrap();
        let (image, target) = (scratch.image().display().to_string(), target.display().to_string());
        let (code, message) = fails(&["mount", "-o", option, &image, &target]);
        assert!(code == 1 && message.contains(words), "{option}: {code}: {message}");
        scratch.judge();
    }
}

#[test]
fn a_mount_that_cannot_be_written_says_why_unless_it_was_asked_for() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_volume(Format::Ext2);
    let image = fs::File::options().read(true).write(true).open(scratch.image()).unwrap();
    // s_feature_ro_compat: quota.
    const FEATURES: u64 = 1024 + 0x64;
    let mut features = [0; 4];
    image.read_exact_at(&mut features, FEATURES).unwrap();
    image.write_all_at(&(u32::from_le_bytes(features) | 0x100).to_le_bytes(), FEATURES).unwrap();
    drop(image);
    let target = scratch.path("mnt");
    fs::create_dir(&target).unwrap();
    for (options, told) in [("rw", true), ("ro", false)] {
        let outcome = moafs(&[
            "mount".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            scratch.image().as_os_str(),
            target.as_os_str(),
        ]);
        let mounted = Mounted { target: target.clone() };
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        assert!(outcome.status.success(), "{said}");
        assert_eq!(said.contains("read-only") && said.contains("quota"), told, "{options}: {said}");
        assert_eq!(fs::write(mounted.path("file"), b"x").unwrap_err().raw_os_error(), Some(libc::EROFS));
        mounted.unmount();
    }
}

#[test]
fn every_policy_of_f2fs_serves_a_volume_that_fills_up() {
    if !can_mount() {
        return;
    }
    for options in [
        "cleaner=greedy,recycle=never,clean-order=found",
        "cleaner=hole-plugging,temperature=wolf,discard",
        "cleaner=adaptive,clean_batch=4,nodiscard",
        "cleaner=age-threshold,recycle=always,background_gc=off",
    ] {
        let scratch = Scratch::with_volume(Format::F2fs);
        let mounted = Mounted::new(&scratch, &format!("cache=16M,commit=0.2,{options}"));
        let contents = |number: usize, round: usize| vec![(number * 31 + round * 7) as u8; 40_000 + number * 100];
        // About three quarters of the volume, then parts of it again and again.
        for number in 0..650 {
            fs::write(mounted.path(&format!("file{number}")), contents(number, 0)).unwrap();
        }
        for round in 1..4 {
            for number in (round..650).step_by(2) {
                fs::write(mounted.path(&format!("file{number}")), contents(number, round)).unwrap();
            }
        }
        let engine = &mounted.stats()["engine"];
        let written = |counter: &str| engine[counter].as_u64().unwrap();
        assert!(written("blocks_appended") + written("blocks_recycled") > 20_000, "{options}: {engine}");
        assert!(engine["segments"]["free"].is_u64(), "{engine}");
        mounted.unmount();
        scratch.judge();
        let again = Mounted::new(&scratch, "ro");
        for number in 0..650 {
            let round = (0..4).rev().find(|&round| round == 0 || number >= round && (number - round) % 2 == 0).unwrap();
            let found = fs::read(again.path(&format!("file{number}"))).unwrap();
            assert!(found == contents(number, round), "{options}: file{number}");
        }
        again.unmount();
    }
}
