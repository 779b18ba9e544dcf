//! Commands that work on a volume without mounting it.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use support::{Format, Scratch, e2fsck, fails, moafs, ok};

support::tests_of_both! {
    a_tree_goes_in_and_comes_out_as_it_was,
    names_are_made_listed_printed_and_removed,
    copies_within_and_between_volumes_work,
    errors_name_the_place_and_the_way_out,
    info_and_map_show_the_layout,
    mkdir_and_rm_take_several_paths_and_follow_links_on_the_way,
}

/// Makes a small tree with properties that copies often lose.
fn make_tree(at: &Path) {
    fs::create_dir_all(at.join("sub/deep")).unwrap();
    fs::write(at.join("small"), b"hello\n").unwrap();
    fs::write(at.join("sub/empty"), b"").unwrap();
    fs::write(at.join("sub/deep/large"), vec![7; 3 << 20]).unwrap();
    fs::hard_link(at.join("small"), at.join("sub/other-name")).unwrap();
    symlink("../small", at.join("sub/link")).unwrap();
    fs::set_permissions(at.join("small"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at.join("sub/deep"), fs::Permissions::from_mode(0o1770)).unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 40 << 20).unwrap();
    sparse.set_len(50 << 20).unwrap();
    let past = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(at.join("small")).unwrap().set_modified(past).unwrap();
}

fn assert_same_tree(one: &Path, other: &Path) {
    let output = Command::new("diff").args(["-r", "--no-dereference"]).arg(one).arg(other).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn a_tree_goes_in_and_comes_out_as_it_was(format: Format) {
    let scratch = Scratch::with_volume(format);
    let (tree, back) = (scratch.path("tree"), scratch.path("back"));
    make_tree(&tree);
    ok(&["cp".into(), "-a".into(), tree.display().to_string(), scratch.inside("/")]);
    scratch.judge();
    ok(&["cp".into(), "-a".into(), scratch.inside("/tree"), back.display().to_string()]);
    assert_same_tree(&tree, &back);
    let (before, after) = (tree.join("small").metadata().unwrap(), back.join("small").metadata().unwrap());
    assert_eq!((before.mode(), before.mtime(), before.nlink()), (after.mode(), after.mtime(), after.nlink()));
    assert_eq!(after.ino(), back.join("sub/other-name").metadata().unwrap().ino());
    assert_eq!(tree.join("sub/deep").metadata().unwrap().mode(), back.join("sub/deep").metadata().unwrap().mode());
    let sparse = back.join("sparse").metadata().unwrap();
    assert_eq!(sparse.len(), 50 << 20);
    assert!(sparse.blocks() < 2048, "the hole was filled: {} sectors", sparse.blocks());
}

fn names_are_made_listed_printed_and_removed(format: Format) {
    let scratch = Scratch::with_volume(format);
    let file = scratch.path("file");
    fs::write(&file, b"contents").unwrap();
    ok(&["mkdir", "-p", &scratch.inside("/a/b/c")]);
    ok(&["put".into(), file.display().to_string(), scratch.inside("/a/b")]);
    assert_eq!(ok(&["cat", &scratch.inside("/a/b/file")]), "contents");
    assert_eq!(ok(&["ls", &scratch.inside("/a/b")]), "c\nfile\n");
    assert!(ok(&["ls", "-lR", &scratch.inside("/a")]).contains("/a/b:"));
    let listing = ok(&["ls", "-R", "--json", &scratch.inside("/a")]);
    let entries: serde_json::Value = serde_json::from_str(&listing).unwrap();
    assert!(
        entries["files"].as_array().unwrap().iter().any(|entry| entry["path"] == "/a/b/file" && entry["size"] == 8)
    );
    let stat: serde_json::Value = serde_json::from_str(&ok(&["stat", "--json", &scratch.inside("/a/b/file")])).unwrap();
    assert_eq!((&stat["runs"][0]["file_block"], &stat["runs"][0]["blocks"]), (&0.into(), &1.into()));
    ok(&["rm", "-r", &scratch.inside("/a")]);
    assert_eq!(ok(&["ls", &scratch.inside("/")]), "lost+found\n");
    scratch.judge();
}

fn copies_within_and_between_volumes_work(format: Format) {
    let (one, two) = (Scratch::with_volume(format), Scratch::with_volume(format));
    let file = one.path("file");
    fs::write(&file, vec![3; 100_000]).unwrap();
    ok(&["cp".into(), file.display().to_string(), one.inside("/first")]);
    ok(&["cp", &one.inside("/first"), &one.inside("/second")]);
    ok(&["cp", &one.inside("/second"), &two.inside("/third")]);
    assert_eq!(ok(&["cat", &two.inside("/third")]).len(), 100_000);
    ok(&["mkdir", &one.inside("/dir")]);
    let (_, message) = fails(&["cp", "-r", &one.inside("/"), &one.inside("/dir")]);
    assert!(message.contains("cannot be copied into itself"), "{message}");
    assert_eq!(ok(&["ls", &one.inside("/dir")]), "");
    one.judge();
}

fn errors_name_the_place_and_the_way_out(format: Format) {
    let scratch = Scratch::with_volume(format);
    let (code, message) = fails(&["cat", &scratch.inside("/nothing")]);
    assert!(code == 1 && message.contains(":/nothing"), "{message}");
    let (_, message) = fails(&["mkdir", &scratch.inside("/a/b")]);
    assert!(message.contains("-p"), "{message}");
    let (_, message) = fails(&["rm", &scratch.inside("/lost+found")]);
    assert!(message.contains("-r"), "{message}");
    let (_, message) = fails(&["ls", "/no/such.img:/"]);
    assert!(message.contains("/no/such.img"), "{message}");
    let text = scratch.path("text");
    fs::write(&text, b"no volume").unwrap();
    for command in ["info", "ls", "fsck"] {
        let (_, message) = fails(&[command.as_ref(), text.as_os_str()]);
        assert!(message.contains("no ext2, ext3, ext4 or F2FS volume"), "{command}: {message}");
    }
}

fn mkdir_and_rm_take_several_paths_and_follow_links_on_the_way(format: Format) {
    let scratch = Scratch::with_volume(format);
    let image = scratch.image().display().to_string();
    let listed = |path: &str| ok(&["ls", &scratch.inside(path)]);
    symlink("dir", scratch.path("link")).unwrap();
    ok(&["put".into(), scratch.path("link").display().to_string(), scratch.inside("/")]);
    ok(&["mkdir", &scratch.inside("/dir"), &scratch.inside("/link/a"), &scratch.inside("/link/b")]);
    ok(&["mkdir", "-p", &image, "/link/c/d", "/link", "e"]);
    assert_eq!(listed("/dir"), "a\nb\nc\n");
    let gone = [&scratch.inside("/link/a"), "/no/image:/a", &scratch.inside("/no"), &scratch.inside("/link/c")];
    let (code, message) = fails(&[&["rm", "-r"], &gone[..]].concat());
    assert!(code == 1 && message.contains("/no/image") && message.contains(":/no: No such file"), "{message}");
    assert_eq!(listed("/dir"), "b\n");
    let (code, message) = fails(&["mkdir", &scratch.inside("/link"), &scratch.inside("/f")]);
    assert!(code == 1 && message.contains("File exists"), "{message}");
    ok(&["rm", "-r", &image, "/link", "/e"]);
    assert_eq!(listed("/"), "dir\nf\nlost+found\n");
    scratch.judge();
}

/// Checks that a message does not advise mkfs: it would replace the damaged volume by an empty one.
fn says_no_mkfs(message: &str) {
    assert!(!message.contains("mkfs"), "{message}");
}

fn zero(image: &Path, bytes: usize) {
    fs::File::options().write(true).open(image).unwrap().write_all_at(&vec![0; bytes], 0).unwrap();
}

#[test]
fn a_wiped_superblock_is_named_with_the_command_that_restores_it() {
    let scratch = Scratch::with_volume(Format::Ext2);
    let file = scratch.path("file");
    fs::write(&file, b"contents").unwrap();
    ok(&["put".into(), file.display().to_string(), scratch.inside("/")]);
    zero(&scratch.image(), 2048);
    let (image, target) = (scratch.image().display().to_string(), scratch.path("mnt"));
    fs::create_dir(&target).unwrap();
    for command in [vec!["ls", &image], vec!["info", &image], vec!["mount", &image, target.to_str().unwrap()]] {
        let (_, message) = fails(&command);
        assert!(message.contains("holds a copy: `moafs fsck -y "), "{command:?}: {message}");
        says_no_mkfs(&message);
    }
    let repaired = moafs(&["fsck", "-y", &image]);
    assert_eq!(repaired.status.code(), Some(1), "{}", String::from_utf8_lossy(&repaired.stderr));
    scratch.judge();
    assert_eq!(ok(&["cat", &scratch.inside("/file")]), "contents");
}

#[test]
fn a_wiped_superblock_without_a_copy_is_named_with_the_option_for_its_place() {
    // The volume has one group, so there is no copy.
    let scratch = Scratch::new(Format::Ext2);
    let image = scratch.image().display().to_string();
    ok(&["mkfs", "-q", "-t", "ext2", "-b", "4096", &image, "64M"]);
    zero(&scratch.image(), 1 << 20);
    for command in ["ls", "info", "fsck"] {
        let (_, message) = fails(&[command, &image]);
        assert!(message.contains("moafs fsck --superblock BLOCK"), "{command}: {message}");
        says_no_mkfs(&message);
    }
}

#[test]
fn mkfs_asks_before_it_destroys_and_tries_without_doing() {
    let scratch = Scratch::new(Format::Ext2);
    let image = scratch.image().display().to_string();
    assert!(ok(&["mkfs", "-n", &image, "1T"]).contains("would be"));
    assert!(!scratch.image().exists());
    let (_, message) = fails(&["mkfs", &image]);
    assert!(message.contains("SIZE"), "{message}");
    let made = ok(&["mkfs", "--json", "-b", "2048", "-L", "name", "-N", "5000", &image, "32M"]);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["block_size"], &made["blocks"]), (&2048.into(), &16384.into()));
    assert_eq!((&made["format"], &made["journal_blocks"]), (&"ext4".into(), &1024.into()));
    e2fsck(&scratch.image());
    let (_, message) = fails(&["mkfs", &image]);
    assert!(message.contains("an ext4 volume (name)") && message.contains("-F"), "{message}");
    let old =
        ["-T", "news", "-J", "size=4", "-E", "root_owner=7:8,nodiscard", "--compat", "linux-3.10", "-O", "^flex_bg"];
    ok(&[&["mkfs", "-q", "-F", "-b", "1024"], &old[..], &[&image]].concat());
    let info: serde_json::Value = serde_json::from_str(&ok(&["info", "--json", "-H", &image])).unwrap();
    let features = info["superblock"]["features"].as_array().unwrap();
    assert!(features.contains(&"uninit_bg".into()) && !features.contains(&"flex_bg".into()), "{features:?}");
    e2fsck(&scratch.image());
    let (_, message) = fails(&["mkfs", "-F", "-b", "3000", &image]);
    assert!(message.contains("block size"), "{message}");
    e2fsck(&scratch.image());
}

#[test]
fn mkfs_refuses_a_size_that_block_numbers_of_32_bits_do_not_reach() {
    let scratch = Scratch::new(Format::Ext2);
    let image = scratch.image().display().to_string();
    for format in ["ext2", "ext3"] {
        let (code, said) = fails(&["mkfs", "-n", "-t", format, &image, "100T"]);
        assert!(code == 1 && said.contains("too many") && said.contains("64bit"), "{said}");
        // One block too many is left out, as mke2fs does it.
        assert!(ok(&["mkfs", "-n", "-t", format, &image, "16T"]).contains("4294967295 blocks"));
    }
    assert!(ok(&["mkfs", "-n", &image, "100T"]).contains("100 TiB"));
    assert!(fails(&["mkfs", "-n", "-t", "f2fs", &image, "100T"]).1.contains("does not fit"));
    assert!(ok(&["mkfs", "-n", &image, "1.5G"]).contains("1.5 GiB"));
    assert_eq!(fails(&["mkfs", "-n", &image, "1.5"]).0, 1);
    assert!(!scratch.image().exists());
}

#[test]
fn mkfs_says_which_partition_table_it_overwrites() {
    let scratch = Scratch::new(Format::Ext2);
    let image = scratch.image().display().to_string();
    let make_table = |label: &str| {
        fs::File::create(scratch.image()).unwrap().set_len(64 << 20).unwrap();
        let mut sfdisk = Command::new("sfdisk");
        let Ok(mut child) = sfdisk.args(["-q", &image]).stdin(std::process::Stdio::piped()).spawn() else {
            eprintln!("SKIPPED: sfdisk is not installed");
            return false;
        };
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), label.as_bytes()).unwrap();
        child.wait().unwrap().success()
    };
    for (table, words) in [
        ("label: gpt\nsize=20M\nsize=10M\n", "a partition table (gpt, 2 partitions)"),
        ("label: dos\nsize=20M\n", "a partition table (dos, 1 partition)"),
    ] {
        if !make_table(table) {
            return;
        }
        let before = fs::read(scratch.image()).unwrap();
        let (code, said) = fails(&["mkfs", &image, "80M"]);
        assert!(code == 1 && said.contains(&format!("holds {words}; -F")), "{said}");
        fails(&["mkfs", "-F", "-b", "3000", &image]);
        assert!(fs::read(scratch.image()).unwrap() == before, "a refusal changed the image");
        let output = moafs(&["mkfs", "-F", &image]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains(&format!("holds {words}, which is overwritten")), "{said}");
        let after = fs::read(scratch.image()).unwrap();
        assert!(!after[after.len() - 512..].starts_with(b"EFI PART"), "the table's copy is left");
        e2fsck(&scratch.image());
    }
}

#[test]
fn fsck_is_silent_about_a_sound_volume_and_sees_a_damaged_one() {
    let scratch = Scratch::with_volume(Format::Ext2);
    let image = scratch.image().display().to_string();
    ok(&["fsck", "-n", &image]);
    ok(&["fsck", "-y", "-f", &image]);
    let file = fs::File::options().write(true).open(scratch.image()).unwrap();
    let info: serde_json::Value = serde_json::from_str(&ok(&["info", "--json", &image])).unwrap();
    let bitmap = info["groups"][0]["block_bitmap"].as_u64().unwrap() * 1024;
    // The first eight blocks, which are in use, become free.
    file.write_all_at(&[0], bitmap).unwrap();
    let (code, _) = fails(&["fsck", "-n", &image]);
    assert_eq!(code, 4);
    let (code, _) = fails(&["fsck", "-f", "-y", &image]);
    assert_eq!(code, 1);
    e2fsck(&scratch.image());
    let (code, _) = fails(&["fsck", "/no/such/image"]);
    assert_eq!(code, 8);
}

/// Code 5 is in `what_finds_no_room_for_a_name_is_said_to_be_left` (ext).
#[test]
fn fsck_ends_with_the_codes_of_the_manual() {
    /// Damages a volume, given its image and the first byte of its inode table.
    type Damage = fn(&fs::File, u64);
    let manual = include_str!("../../../docs/commands.md");
    let codes = manual.lines().skip_while(|line| !line.starts_with("Exit codes, as fsck(8):"));
    let codes: String = codes.take(3).collect::<Vec<_>>().join(" ");
    for said in [
        "0 no errors;",
        "1 errors repaired;",
        "4 errors left;",
        "5 (1 + 4) some repaired, others left;",
        "8 the check could not be done.",
    ] {
        assert!(codes.contains(said), "{said}: {codes}");
    }
    let nothing: Damage = |_, _| ();
    // The superblock's count of free inodes, which is no error.
    let count: Damage = |file, _| file.write_all_at(&[0xff; 4], 1024 + 16).unwrap();
    // The first block of the root directory lies outside of the volume.
    let pointer: Damage = |file, table| file.write_all_at(&[0xff; 4], table + 128 + 40).unwrap();
    for (what, damage, options, ends) in [
        ("sound", nothing, "-fn", &[0, 0][..]),
        ("sound", nothing, "-fy", &[0, 0]),
        ("count", count, "-fn", &[0, 0]),
        ("count", count, "-fp", &[1, 0]),
        ("count", count, "-fy", &[1, 0]),
        ("pointer", pointer, "-fn", &[4, 4]),
        ("pointer", pointer, "-fp", &[4, 4]),
        ("pointer", pointer, "-fy", &[1, 0]),
    ] {
        let scratch = Scratch::new(Format::Ext2);
        let image = scratch.image().display().to_string();
        ok(&["mkfs", "-q", "-t", "ext2", "-b", "1024", "-I", "128", &image, "8M"]);
        let info: serde_json::Value = serde_json::from_str(&ok(&["info", "--json", &image])).unwrap();
        let table = info["groups"][0]["inode_table"].as_u64().unwrap() * 1024;
        damage(&fs::File::options().write(true).open(scratch.image()).unwrap(), table);
        for (run, code) in ends.iter().enumerate() {
            let output = moafs(&["fsck", options, &image]);
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(*code), "{what}: fsck {options}, run {run}: {said}");
        }
        if options == "-fy" {
            e2fsck(&scratch.image());
        }
    }
    for (image, code) in [("/no/such/image", 8), ("/dev/null", 8)] {
        assert_eq!(moafs(&["fsck", "-n", image]).status.code(), Some(code), "{image}");
    }
}

fn info_and_map_show_the_layout(format: Format) {
    let scratch = Scratch::with_volume(format);
    make_tree(&scratch.path("tree"));
    ok(&["cp".into(), "-r".into(), scratch.path("tree").display().to_string(), scratch.inside("/")]);
    let image = scratch.image().display().to_string();
    let text = ok(&["info", "--groups", &image]);
    assert!(text.contains("layout score") && text.contains("free runs"), "{text}");
    let table = if format == Format::Ext2 { " group  first block" } else { "segment  log" };
    assert!(text.contains(table), "{text}");
    let info: serde_json::Value = serde_json::from_str(&ok(&["info", "--json", &image])).unwrap();
    assert_eq!(info["superblock"]["format"], format.name());
    let score = info["layout"]["layout_score"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&score));
    let picture = scratch.path("layout.svg");
    ok(&["map", &image, "-o", &picture.display().to_string()]);
    assert!(fs::read_to_string(&picture).unwrap().contains("<svg"));
    let (_, message) = fails(&["map", &image, "-o", "layout.gif"]);
    assert!(message.contains(".svg"), "{message}");
}

#[test]
fn mkfs_makes_f2fs_volumes_as_they_are_asked_for() {
    let scratch = Scratch::new(Format::F2fs);
    let image = scratch.image().display().to_string();
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let options = ["-L", "f\u{fc}nf", "-U", uuid, "-O", "extra_attr,inode_crtime", "-s", "2", "-o", "20"];
    let made = ok(&[&["mkfs", "--json", "-t", "f2fs"], &options[..], &[&image, "512M"]].concat());
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["format"], &made["segs_per_sec"]), (&"f2fs".into(), &2.into()));
    scratch.judge();
    let info: serde_json::Value = serde_json::from_str(&ok(&["info", "--json", "-H", &image])).unwrap();
    let superblock = &info["superblock"];
    assert_eq!((&superblock["label"], &superblock["uuid"]), (&"f\u{fc}nf".into(), &uuid.into()));
    assert_eq!(superblock["features"], serde_json::json!(["extra_attr", "inode_crtime"]));
    assert_eq!(info["checkpoint"]["state"], "clean");
    let (_, message) = fails(&["mkfs", "-t", "f2fs", &image]);
    assert!(message.contains("an f2fs volume (f\u{fc}nf)") && message.contains("-F"), "{message}");
    for (arguments, word) in [
        (&["-t", "f2fs", "-N", "500"][..], "-N is an option of ext2"),
        (&["-O", "^extent"], "64bit needs extent"),
        (&["-O", "bigalloc"], "not made"),
        (&["-E", "quotatype=usrquota"], "is not known"),
        (&["-s", "2"], "-s is an option of f2fs"),
        (&["-t", "f2fs", "-O", "encrypt"], "inode_crtime"),
        (&["-t", "f2fs", "-o", "100"], "overprovision"),
    ] {
        let (_, message) = fails(&[&["mkfs", "-F"], arguments, &[&image]].concat());
        assert!(message.contains(word), "{arguments:?}: {message}");
    }
    let (_, message) = fails(&["mkfs", "-F", "-t", "f2fs", &image, "100M"]);
    assert!(message.contains("512 MiB") && message.contains("100 MiB"), "{message}");
    // Nothing of it touched the volume.
    scratch.judge();
    ok(&["mkfs", "-q", "-F", &image]);
    e2fsck(&scratch.image());
}

#[test]
fn mkfs_that_is_refused_changes_nothing() {
    for format in [Format::Ext2, Format::F2fs] {
        let scratch = Scratch::with_plain_volume(format);
        let image = scratch.image().display().to_string();
        let before = fs::read(scratch.image()).unwrap();
        for wrong in [
            &["-t", "ext4", "-b", "1000"][..],
            &["-t", "ext4", "-O", "no_such_feature"],
            &["-t", "ext2", "-L", "a label of more than sixteen bytes"],
            &["-t", "f2fs", "-s", "0"],
            &["-t", "f2fs", "-O", "inode_checksum"],
        ] {
            for size in [None, Some("1G")] {
                let arguments: Vec<&str> = ["mkfs", "-F"].into_iter().chain(wrong.iter().copied()).collect();
                let (_, said) = fails(&arguments.into_iter().chain([image.as_str()]).chain(size).collect::<Vec<_>>());
                assert!(!said.contains("is overwritten"), "{said}");
                assert!(fs::read(scratch.image()).unwrap() == before, "{wrong:?} changed the image");
            }
        }
        ok(&["mkfs", "-q", "-F", "-t", format.name(), &image, "200M"]);
        assert_eq!(fs::metadata(scratch.image()).unwrap().len(), 200 << 20);
    }
}

#[test]
fn fsck_looks_at_f2fs_volumes_and_leaves_repairs_to_others() {
    let scratch = Scratch::with_volume(Format::F2fs);
    let image = scratch.image().display().to_string();
    for option in ["-n", "-p", "-fy"] {
        assert!(ok(&["fsck", option, &image]).contains("no errors"));
    }
    let info: serde_json::Value = serde_json::from_str(&ok(&["info", "--json", &image])).unwrap();
    let areas = info["superblock"]["areas"].as_array().unwrap();
    let main = areas.iter().find(|area| area["what"] == "main area").unwrap()["first"].as_u64().unwrap();
    let log = info["checkpoint"]["logs"].as_array().unwrap().iter().find(|log| log["log"] == "hot_node").unwrap();
    let root = main + log["segment"].as_u64().unwrap() * 512;
    let file = fs::File::options().write(true).open(scratch.image()).unwrap();
    file.write_all_at(&[0xa5; 4096], root * 4096).unwrap();
    for option in ["-n", "-y"] {
        let output = support::moafs(&["fsck", option, &image]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("repair it with `fsck.f2fs"), "{said}");
    }
    let output = support::moafs(&["fsck", "--json", &image]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!report["texts"].as_array().unwrap().is_empty() && report["exit_code"] == 4, "{report}");
}
