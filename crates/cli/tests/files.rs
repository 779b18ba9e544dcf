//! Commands that work on a volume without mounting it.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use support::{Scratch, e2fsck, fails, ok};

/// A small tree with what copies like to lose.
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

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let scratch = Scratch::with_volume("64M");
    let (tree, back) = (scratch.path("tree"), scratch.path("back"));
    make_tree(&tree);
    ok(&["cp".into(), "-a".into(), tree.display().to_string(), scratch.inside("/")]);
    e2fsck(&scratch.image());
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

#[test]
fn names_are_made_listed_printed_and_removed() {
    let scratch = Scratch::with_volume("16M");
    let file = scratch.path("file");
    fs::write(&file, b"contents").unwrap();
    ok(&["mkdir", "-p", &scratch.inside("/a/b/c")]);
    ok(&["put".into(), file.display().to_string(), scratch.inside("/a/b")]);
    assert_eq!(ok(&["cat", &scratch.inside("/a/b/file")]), "contents");
    assert_eq!(ok(&["ls", &scratch.inside("/a/b")]), "c\nfile\n");
    assert!(ok(&["ls", "-lR", &scratch.inside("/a")]).contains("/a/b:"));
    let listing = ok(&["ls", "-R", "--json", &scratch.inside("/a")]);
    let entries: serde_json::Value = serde_json::from_str(&listing).unwrap();
    assert!(entries.as_array().unwrap().iter().any(|entry| entry["path"] == "/a/b/file" && entry["size"] == 8));
    let stat: serde_json::Value = serde_json::from_str(&ok(&["stat", "--json", &scratch.inside("/a/b/file")])).unwrap();
    assert_eq!(stat["runs"][0][2], 1);
    ok(&["rm", "-r", &scratch.inside("/a")]);
    assert_eq!(ok(&["ls", &scratch.inside("/")]), "lost+found\n");
    e2fsck(&scratch.image());
}

#[test]
fn copies_within_and_between_volumes_work() {
    let (one, two) = (Scratch::with_volume("16M"), Scratch::with_volume("16M"));
    let file = one.path("file");
    fs::write(&file, vec![3; 100_000]).unwrap();
    ok(&["cp".into(), file.display().to_string(), one.inside("/first")]);
    ok(&["cp", &one.inside("/first"), &one.inside("/second")]);
    ok(&["cp", &one.inside("/second"), &two.inside("/third")]);
    assert_eq!(ok(&["cat", &two.inside("/third")]).len(), 100_000);
    ok(&["mkdir", &one.inside("/dir")]);
    let (_, message) = fails(&["cp", "-r", &one.inside("/"), &one.inside("/dir")]);
    assert!(message.contains("the copy itself"), "{message}");
    e2fsck(&one.image());
}

#[test]
fn errors_name_the_place_and_the_way_out() {
    let scratch = Scratch::with_volume("16M");
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
    let (code, message) = fails(&["info".as_ref(), text.as_os_str()]);
    assert!(code == 1 && !message.is_empty());
}

#[test]
fn mkfs_asks_before_it_destroys_and_tries_without_doing() {
    let scratch = Scratch::new();
    let image = scratch.image().display().to_string();
    assert!(ok(&["mkfs", "-n", &image, "1T"]).contains("would be"));
    assert!(!scratch.image().exists());
    let (_, message) = fails(&["mkfs", &image]);
    assert!(message.contains("SIZE"), "{message}");
    let made = ok(&["mkfs", "--json", "-b", "2048", "-L", "name", "-N", "5000", &image, "32M"]);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["block_size"], &made["blocks"]), (&2048.into(), &16384.into()));
    e2fsck(&scratch.image());
    let (_, message) = fails(&["mkfs", &image]);
    assert!(message.contains("ext2") && message.contains("-F"), "{message}");
    ok(&["mkfs", "-q", "-F", "-b", "1024", &image]);
    e2fsck(&scratch.image());
    let (_, message) = fails(&["mkfs", "-F", "-b", "3000", &image]);
    assert!(message.contains("block size"), "{message}");
    e2fsck(&scratch.image());
}

#[test]
fn fsck_is_silent_about_a_sound_volume_and_sees_a_damaged_one() {
    let scratch = Scratch::with_volume("16M");
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

#[test]
fn info_and_map_show_the_layout() {
    let scratch = Scratch::with_volume("32M");
    make_tree(&scratch.path("tree"));
    ok(&["cp".into(), "-r".into(), scratch.path("tree").display().to_string(), scratch.inside("/")]);
    let image = scratch.image().display().to_string();
    let text = ok(&["info", "--groups", &image]);
    assert!(text.contains("layout score") && text.contains("free runs"), "{text}");
    let info: serde_json::Value = serde_json::from_str(&ok(&["info", "--json", &image])).unwrap();
    let score = info["layout"]["layout_score"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&score));
    let picture = scratch.path("layout.svg");
    ok(&["map", &image, "-o", &picture.display().to_string()]);
    assert!(fs::read_to_string(&picture).unwrap().contains("<svg"));
    let (_, message) = fails(&["map", &image, "-o", "layout.gif"]);
    assert!(message.contains(".svg"), "{message}");
}
