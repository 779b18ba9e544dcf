//! Commands that change names, modes, owners, times and sizes of files on a volume, or show its space, without
//! mounting it.

mod support;

use std::fs;
use std::os::unix::fs::chown;

use serde_json::Value;
use support::{Format, ORDINARY_USER, Scratch, can_be_user, fails, moafs_as_user, ok};

support::tests_of_ext4_and_f2fs! {
    files_are_moved_and_renamed,
    a_move_goes_on_after_a_path_that_is_missing,
    a_move_that_makes_no_sense_is_refused_with_the_reason,
    a_move_to_another_of_the_files_names_leaves_one,
    a_file_gets_more_names,
    symbolic_links_have_the_text_that_is_given,
    modes_are_changed_as_chmod_has_it,
    owners_are_numbers_or_names_of_the_host,
    touch_makes_files_and_sets_their_times,
    files_become_longer_and_shorter,
    du_counts_each_inode_once,
    df_shows_the_space_of_each_volume,
    several_paths_are_given_on_their_own_or_after_the_image,
    symbolic_links_to_directories_are_followed_on_the_way,
    an_ordinary_user_edits_an_image_without_root,
}

/// A volume with the directories `/a`, `/a/b` and `/c`, and the empty files `/a/1` and `/a/2`.
fn volume(format: Format) -> Scratch {
    let scratch = Scratch::with_volume(format);
    ok(&["mkdir", "-p", &scratch.inside("/a/b"), &scratch.inside("/c")]);
    ok(&["touch", &scratch.inside("/a/1"), &scratch.inside("/a/2")]);
    scratch
}

/// Runs the command, which must fail with exit code 1 and a message that has `part`.
fn refuses(arguments: &[&str], part: &str) {
    let (code, message) = fails(arguments);
    assert!(code == 1 && message.contains(part), "{arguments:?}: {code} {message}");
}

fn names(scratch: &Scratch, dir: &str) -> Vec<String> {
    let all = ok(&["ls", &scratch.inside(dir)]);
    all.lines().filter(|name| *name != "lost+found").map(str::to_owned).collect()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(arguments)).unwrap()
}

fn stat(scratch: &Scratch, path: &str) -> Value {
    json(&["stat", "--json", &scratch.inside(path)])
}

fn mode(scratch: &Scratch, path: &str) -> String {
    stat(scratch, path)["mode"].as_str().unwrap().to_owned()
}

fn owner(scratch: &Scratch, path: &str) -> (u64, u64) {
    let stat = stat(scratch, path);
    (stat["uid"].as_u64().unwrap(), stat["gid"].as_u64().unwrap())
}

/// Puts a file with these contents on the volume.
fn put(scratch: &Scratch, path: &str, contents: &[u8]) {
    let file = scratch.path("contents");
    fs::write(&file, contents).unwrap();
    ok(&["cp", file.to_str().unwrap(), &scratch.inside(path)]);
}

fn files_are_moved_and_renamed(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    put(&scratch, "/file", b"contents");
    ok(&["mv", &at("/file"), &at("/c/new")]);
    assert_eq!(ok(&["cat", &at("/c/new")]), "contents");
    ok(&["mv", &at("/c/new"), &at("/a/1")]);
    assert_eq!(ok(&["cat", &at("/a/1")]), "contents", "the old file was not replaced");
    ok(&["mv", "-n", &at("/a/2"), &at("/a/1")]);
    assert_eq!(ok(&["cat", &at("/a/1")]), "contents", "-n replaced a file");
    ok(&["mv", &at("/a/1"), &at("/a/2"), &at("/a/b"), &at("/c/")]);
    assert_eq!((names(&scratch, "/c"), names(&scratch, "/a")), (vec!["1".into(), "2".into(), "b".into()], vec![]));
    ok(&["mv", &at("/c/"), &at("/a/d/")]);
    assert_eq!(names(&scratch, "/a/d"), ["1", "2", "b"]);
    scratch.judge();
}

fn a_move_goes_on_after_a_path_that_is_missing(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    let (code, message) = fails(&["mv", &at("/a/1"), &at("/missing"), &at("/no/dir"), &at("/a/2"), &at("/c")]);
    assert_eq!(code, 1);
    for missing in ["/missing", "/no/dir"] {
        let told = format!("moafs: moving {}: No such file or directory\n", at(missing));
        assert!(message.contains(&told), "{message}");
    }
    assert_eq!(names(&scratch, "/c"), ["1", "2"]);
    scratch.judge();
}

fn a_move_that_makes_no_sense_is_refused_with_the_reason(format: Format) {
    let (scratch, other) = (volume(format), Scratch::with_volume(format));
    let at = |path: &str| scratch.inside(path);
    refuses(&["mv", &at("/a"), &at("/a/b")], "cannot be moved into itself");
    refuses(&["mv", &at("/a"), &at("/a/new")], "cannot be moved into itself");
    refuses(&["mv", &at("/a/1"), &at("/a/1")], "are the same file: nothing is moved");
    refuses(&["mv", &at("/a/1"), &at("/a")], "are the same file: nothing is moved");
    refuses(&["mv", &at("/a/1"), &at("/missing/new")], "/missing/new does not exist");
    refuses(&["mv", &at("/a/1"), &at("/new/")], "Not a directory");
    refuses(&["mv", &at("/"), &at("/c")], "moving");
    refuses(&["mv", &at("/a/."), &at("/c")], "Invalid argument");
    refuses(&["mv", &at("/a/1"), &at("/a/2"), &at("/new")], "several files cannot go there");
    ok(&["mkdir", &at("/c/1"), &at("/c/b"), &at("/c/b/full")]);
    refuses(&["mv", &at("/a/1"), &at("/c")], "Is a directory");
    refuses(&["mv", &at("/a/b"), &at("/c")], "Directory not empty");
    refuses(&["mv", &at("/c"), &at("/a/1")], "Not a directory");
    ok(&["touch", &at("/c/2")]);
    ok(&["mkdir", &at("/d")]);
    refuses(&["mv", &at("/a/2"), &at("/c/2"), &at("/d")], "another source of this name was just moved");
    assert_eq!(
        (names(&scratch, "/d"), names(&scratch, "/c")),
        (vec!["2".into()], vec!["1".into(), "2".into(), "b".into()])
    );
    let host = scratch.path("host");
    fs::write(&host, b"").unwrap();
    fs::create_dir(scratch.path("dir")).unwrap();
    refuses(&["mv", &at("/a/1"), &other.inside("/")], "`moafs cp` copies");
    refuses(&["mv", &at("/a/1"), host.to_str().unwrap()], "`moafs cp` copies");
    refuses(&["mv", &at("/a/1"), scratch.path("dir").to_str().unwrap()], "`moafs cp` copies");
    refuses(&["mv", scratch.path("new").to_str().unwrap(), &at("/")], "`moafs cp` copies");
    assert_eq!(fails(&["mv", &at("/a/1")]).0, 2);
    scratch.judge();
}

fn a_move_to_another_of_the_files_names_leaves_one(format: Format) {
    let scratch = volume(format);
    ok(&["ln", &scratch.inside("/a/1"), &scratch.inside("/c/link")]);
    ok(&["mv", &scratch.inside("/a/1"), &scratch.inside("/c/link")]);
    assert_eq!((names(&scratch, "/a"), names(&scratch, "/c")), (vec!["2".into(), "b".into()], vec!["link".into()]));
    assert_eq!(stat(&scratch, "/c/link")["nlink"], 1);
    scratch.judge();
}

#[test]
fn a_move_into_a_directory_that_cannot_grow_leaves_the_file_where_it_was() {
    let scratch = Scratch::new(Format::Ext4);
    let image = scratch.image().display().to_string();
    ok(&["mkfs", "-q", "-t", "ext4", "-b", "1024", "-m", "0", &image, "16M"]);
    ok(&["mkdir", &scratch.inside("/full")]);
    // Three names of this length fill a block of 1024 bytes.
    let long: Vec<String> =
        ('a'..='z').map(|first| scratch.inside(&format!("/{}", first.to_string().repeat(250)))).collect();
    let all: Vec<&str> = long.iter().map(String::as_str).collect();
    ok(&[&["touch"], &all[..]].concat());
    let filler = scratch.path("filler");
    for size in (10..23).rev().map(|shift| 1 << shift) {
        fs::write(&filler, vec![1; size]).unwrap();
        let fits = |piece: &u32| {
            let name = scratch.inside(&format!("/filler-{size}-{piece}"));
            support::moafs(&["cp", filler.to_str().unwrap(), &name]).status.success()
        };
        (0..3).take_while(fits).for_each(drop);
    }
    let into = scratch.inside("/full");
    refuses(&[&["mv"], &all[..], &[&into]].concat(), "No space left on device");
    let moved = names(&scratch, "/full").len();
    let left = names(&scratch, "/").iter().filter(|name| name.len() == 250).count();
    assert!(moved + left == all.len() && left > 0, "{moved} were moved, {left} were not");
    scratch.judge();
    ok(&["rm", &scratch.inside("/filler-1048576-0")]);
    let rest: Vec<String> = names(&scratch, "/").into_iter().filter(|name| name.len() == 250).collect();
    let rest: Vec<String> = rest.iter().map(|name| scratch.inside(&format!("/{name}"))).collect();
    ok(&[&["mv"], &rest.iter().map(String::as_str).collect::<Vec<_>>()[..], &[&into]].concat());
    assert_eq!(names(&scratch, "/full").len(), all.len());
    scratch.judge();
}

fn a_file_gets_more_names(format: Format) {
    let (scratch, other) = (volume(format), Scratch::with_volume(format));
    let at = |path: &str| scratch.inside(path);
    ok(&["ln", &at("/a/1"), &at("/one")]);
    ok(&["ln", &at("/a/1"), &at("/a/2"), &at("/c")]);
    assert_eq!(stat(&scratch, "/one")["nlink"], 3);
    assert_eq!(stat(&scratch, "/one")["ino"], stat(&scratch, "/c/1")["ino"]);
    refuses(&["ln", &at("/a/2"), &at("/one")], "File exists");
    refuses(&["ln", "-f", &at("/a/1"), &at("/one")], "are the same file: nothing is linked");
    ok(&["ln", "-f", &at("/a/2"), &at("/one")]);
    assert_eq!(stat(&scratch, "/one")["ino"], stat(&scratch, "/a/2")["ino"]);
    refuses(&["ln", &at("/a"), &at("/new")], "-s");
    refuses(&["ln", "-f", &at("/a/1"), &at("/missing/new")], "does not exist");
    refuses(&["ln", &at("/missing"), &at("/a/2"), &at("/a/b")], "/missing: No such file or directory");
    assert_eq!(names(&scratch, "/a/b"), ["2"]);
    refuses(&["ln", &at("/a/1"), &other.inside("/new")], "`moafs cp` copies");
    assert_eq!(names(&scratch, "/"), ["a", "c", "one"]);
    scratch.judge();
}

fn symbolic_links_have_the_text_that_is_given(format: Format) {
    let (scratch, other) = (volume(format), Scratch::with_volume(format));
    let at = |path: &str| scratch.inside(path);
    let text = |path: &str| {
        let listed = json(&["ls", "-d", "--json", &at(path)]);
        listed["files"][0]["target"].as_str().map(str::to_owned)
    };
    ok(&["ln", "-s", "../nowhere", &at("/link")]);
    assert_eq!(text("/link").unwrap(), "../nowhere");
    ok(&["ln", "-s", &at("/a/1"), "x/y", &at("/c")]);
    assert_eq!((text("/c/1").unwrap(), text("/c/y").unwrap()), ("/a/1".into(), "x/y".into()));
    ok(&["ln", "-s", scratch.image().to_str().unwrap(), "first", "/words"]);
    assert_eq!(text("/words").unwrap(), "first");
    refuses(&["ln", "-s", "other", &at("/link")], "File exists");
    ok(&["ln", "-sf", "/a", &at("/link")]);
    assert_eq!(text("/link").unwrap(), "/a");
    // A link to a directory is one, but with -n.
    ok(&["ln", "-s", "below", &at("/link")]);
    assert_eq!(text("/a/below").unwrap(), "below");
    ok(&["ln", "-sfn", "/c", &at("/link")]);
    assert_eq!(text("/link").unwrap(), "/c");
    refuses(&["ln", "-s", &other.inside("/a"), &at("/new")], "are on different volumes");
    assert_eq!(names(&scratch, "/"), ["a", "c", "link", "words"]);
    scratch.judge();
}

fn modes_are_changed_as_chmod_has_it(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    ok(&["chmod", "4751", &at("/a/1"), &at("/a/2")]);
    assert_eq!((mode(&scratch, "/a/1"), mode(&scratch, "/a/2")), ("4751".into(), "4751".into()));
    ok(&["chmod", "u-s,go=u,o-w", &at("/a/1")]);
    assert_eq!(mode(&scratch, "/a/1"), "0775");
    ok(&["chmod", "-x", &at("/a/1")]);
    assert_eq!(mode(&scratch, "/a/1"), "0664");
    let (code, message) = fails(&["chmod", "600", &at("/a/1"), &at("/missing"), &at("/a/2")]);
    assert!(code == 1 && message.contains("/missing: No such file or directory"), "{message}");
    assert_eq!((mode(&scratch, "/a/1"), mode(&scratch, "/a/2")), ("0600".into(), "0600".into()));
    ok(&["ln", "-s", "1", &at("/a/link")]);
    ok(&["chmod", "-R", "a+rX", &at("/a")]);
    assert_eq!((mode(&scratch, "/a/1"), mode(&scratch, "/a/b")), ("0644".into(), "0755".into()));
    ok(&["chmod", "g+s", &at("/a")]);
    ok(&["chmod", "700", &at("/a")]);
    assert_eq!(mode(&scratch, "/a"), "2700");
    ok(&["chmod", "444", &at("/a/link")]);
    assert_eq!((mode(&scratch, "/a/1"), mode(&scratch, "/a/link")), ("0444".into(), "0777".into()));
    for wrong in ["9", "u", "rw", "77777"] {
        assert_eq!(fails(&["chmod", wrong, &at("/a")]).0, 2, "{wrong}");
    }
    assert_eq!(fails(&["chmod", "644"]).0, 2);
    scratch.judge();
}

fn owners_are_numbers_or_names_of_the_host(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    ok(&["chmod", "6755", &at("/a/1")]);
    ok(&["chown", "1000:100", &at("/a/1"), &at("/a/2")]);
    assert_eq!((owner(&scratch, "/a/1"), owner(&scratch, "/a/2")), ((1000, 100), (1000, 100)));
    assert_eq!(mode(&scratch, "/a/1"), "0755", "set-id bits stayed for another user");
    ok(&["chown", "root", &at("/a/1")]);
    assert_eq!(owner(&scratch, "/a/1"), (0, 100));
    ok(&["chown", ":root", &at("/a/1")]);
    assert_eq!(owner(&scratch, "/a/1"), (0, 0));
    refuses(&["chown", "7", &at("/missing"), &at("/a/1")], "/missing: No such file or directory");
    assert_eq!(owner(&scratch, "/a/1").0, 7);
    let before = owner(&scratch, "/a");
    ok(&["ln", "-s", "/a", &at("/c/link")]);
    ok(&["chown", "-h", "5:6", &at("/c/link")]);
    assert_eq!((owner(&scratch, "/c/link"), owner(&scratch, "/a")), ((5, 6), before));
    ok(&["chown", "-R", "8:9", &at("/c")]);
    assert_eq!((owner(&scratch, "/c"), owner(&scratch, "/c/link"), owner(&scratch, "/a")), ((8, 9), (8, 9), before));
    ok(&["chown", "3", &at("/c/link")]);
    assert_eq!(owner(&scratch, "/a").0, 3);
    for wrong in ["no-such-user", ":no-such-group", "", ":", "-1"] {
        assert_eq!(fails(&["chown", wrong, &at("/a")]).0, 2, "{wrong}");
    }
    scratch.judge();
}

fn touch_makes_files_and_sets_their_times(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    let old = scratch.path("old");
    fs::write(&old, b"contents").unwrap();
    let past = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(&old).unwrap().set_modified(past).unwrap();
    ok(&["cp", "-a", old.to_str().unwrap(), &at("/old")]);
    let mtime = |path: &str| stat(&scratch, path)["mtime"].as_str().unwrap().to_owned();
    assert!(mtime("/old").starts_with("2001-"), "{}", mtime("/old"));
    ok(&["touch", "-c", &at("/old"), &at("/new")]);
    assert!(!mtime("/old").starts_with("2001-"));
    assert_eq!(ok(&["cat", &at("/old")]), "contents");
    refuses(&["touch", &at("/missing/new"), &at("/new")], "/missing/new: No such file or directory");
    assert_eq!((ok(&["cat", &at("/new")]), names(&scratch, "/").len()), (String::new(), 4));
    ok(&["ln", "-s", "nowhere", &at("/link")]);
    refuses(&["touch", &at("/link")], "leads nowhere");
    ok(&["touch", &at("/"), &at("/a")]);
    scratch.judge();
}

fn files_become_longer_and_shorter(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    let size = |path: &str| stat(&scratch, path)["size"].as_u64().unwrap();
    put(&scratch, "/file", b"0123456789");
    ok(&["truncate", "-s", "4", &at("/file")]);
    ok(&["truncate", "-s", "+2", &at("/file")]);
    assert_eq!(ok(&["cat", &at("/file")]), "0123\0\0");
    ok(&["truncate", "-s", "-5", &at("/file")]);
    assert_eq!(ok(&["cat", &at("/file")]), "0");
    ok(&["truncate", "--size", "1G", &at("/a/1"), &at("/new")]);
    assert_eq!((size("/a/1"), size("/new")), (1 << 30, 1 << 30));
    assert!(stat(&scratch, "/new")["sectors"].as_u64() <= Some(8), "the hole was filled");
    ok(&["truncate", "-c", "-s", "0", &at("/none"), &at("/new")]);
    assert_eq!((size("/new"), names(&scratch, "/").contains(&"none".to_owned())), (0, false));
    refuses(&["truncate", "-s", "3", &at("/a"), &at("/no/dir"), &at("/a/1")], "Is a directory");
    assert_eq!(size("/a/1"), 3);
    refuses(&["truncate", "-s", "+16777215T", &at("/a/1")], "File too large");
    for wrong in [&["truncate", &at("/a/1")][..], &["truncate", "-s", "many", &at("/a/1")]] {
        assert_eq!(fails(wrong).0, 2);
    }
    scratch.judge();
}

fn du_counts_each_inode_once(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    put(&scratch, "/a/1", &[7; 300_000]);
    ok(&["ln", &at("/a/1"), &at("/a/b/again")]);
    ok(&["ln", &at("/a/1"), &at("/c/again")]);
    let kib = |line: &str| line.split('\t').next().unwrap().parse::<u64>().unwrap();
    let file = kib(&ok(&["du", &at("/a/1")]));
    assert!((293..330).contains(&file), "{file}");
    let all = ok(&["du", &at("/")]);
    let paths: Vec<&str> = all.lines().filter_map(|line| line.split_once(":/")).map(|(_, path)| path).collect();
    let paths: Vec<&str> = paths.into_iter().filter(|path| *path != "lost+found").collect();
    assert_eq!(paths, ["a/b", "a", "c", ""]);
    let whole = kib(all.lines().last().unwrap());
    assert!((file..file + 64).contains(&whole), "{all}");
    assert_eq!(ok(&["du", "-s", &at("/")]), format!("{whole}\t{}\n", at("/")));
    // A path that was counted has no line of its own, as with du(1).
    let again = json(&["du", "--json", &at("/a/b"), &at("/a"), &at("/c"), &at("/a/1")])["paths"].clone();
    let bytes = |path: &str| again.as_array().unwrap().iter().find(|row| row["path"] == path).map(|row| &row["bytes"]);
    assert!(bytes("/a/b").unwrap().as_u64().unwrap() > 300_000, "{again}");
    assert!(bytes("/a").unwrap().as_u64().unwrap() < 30_000, "{again}");
    assert_eq!((bytes("/a/1"), again.as_array().unwrap().len()), (None, 3));
    assert!(ok(&["du", "-sh", &at("/a")]).contains(" KiB\t"));
    refuses(&["du", "-s", &at("/missing"), &at("/c")], "/missing: No such file or directory");
    assert_eq!(fails(&["du"]).0, 2);
}

fn df_shows_the_space_of_each_volume(format: Format) {
    let scratch = volume(format);
    let image = scratch.image().display().to_string();
    let space = || json(&["df", "--json", &image])["volumes"][0].clone();
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    let before = space();
    put(&scratch, "/file", &[1; 1 << 20]);
    let after = space();
    let used = number(&after, "used") - number(&before, "used");
    assert!((1 << 20..(1 << 20) + 65536).contains(&used), "{used}");
    assert_eq!(number(&before, "size"), number(&after, "size"));
    // On F2FS there are no more inodes than free blocks.
    let inodes = number(&after, "inodes_used") - number(&before, "inodes_used");
    assert!(if format == Format::Ext4 { inodes == 1 } else { inodes > 0 }, "{inodes}");
    assert!(number(&after, "available") <= number(&after, "size") - number(&after, "used"));
    let text = ok(&["df", &image, &scratch.inside("/a")]);
    assert_eq!(text.lines().count(), 3);
    assert!(text.lines().nth(1).unwrap().contains(&(number(&after, "used") / 1024).to_string()), "{text}");
    assert!(ok(&["df", "-h", &image]).contains(" MiB"));
    let output = support::moafs(&["df", "/no/such.img", &image]);
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).lines().count()), (Some(1), 2));
    assert_eq!(fails(&["df"]).0, 2);
}

fn several_paths_are_given_on_their_own_or_after_the_image(format: Format) {
    let (scratch, other) = (volume(format), Scratch::with_volume(format));
    let image = scratch.image().display().to_string();
    ok(&["mkdir", &image, "/x", "/y/"]);
    ok(&["mv", &image, "/x", "y", "/c"]);
    assert_eq!(names(&scratch, "/c"), ["x", "y"]);
    ok(&["touch", &scratch.inside("/c/1"), &other.inside("/2"), &scratch.inside("/c/3")]);
    assert_eq!(
        (names(&scratch, "/c"), names(&other, "/")),
        (vec!["1".into(), "3".into(), "x".into(), "y".into()], vec!["2".into()])
    );
    let (code, message) =
        fails(&["rm", "-r", &scratch.inside("/c/x"), "/no/image:/a", &scratch.inside("/no"), &other.inside("/2")]);
    assert!(code == 1 && message.contains("/no/image") && message.contains(":/no: No such file"), "{message}");
    assert_eq!((names(&scratch, "/c"), names(&other, "/")), (vec!["1".into(), "3".into(), "y".into()], vec![]));
    refuses(&["touch", "/no/image", "/a"], "moafs: cannot open /no/image: No such file or directory");
    refuses(&["mkdir", &scratch.inside("/c"), &scratch.inside("/z")], "File exists");
    assert_eq!(names(&scratch, "/"), ["a", "c", "z"]);
    scratch.judge();
    other.judge();
}

fn symbolic_links_to_directories_are_followed_on_the_way(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    ok(&["ln", "-s", "a", &at("/link")]);
    ok(&["touch", &at("/link/3")]);
    ok(&["mv", &at("/link/2"), &at("/link/b")]);
    assert_eq!(
        (names(&scratch, "/a"), names(&scratch, "/a/b")),
        (vec!["1".into(), "3".into(), "b".into()], vec!["2".into()])
    );
    // The last component is the link itself.
    ok(&["mv", &at("/link"), &at("/c")]);
    ok(&["rm", &at("/c/link")]);
    assert_eq!(names(&scratch, "/a").len(), 3);
    scratch.judge();
}

fn an_ordinary_user_edits_an_image_without_root(format: Format) {
    if !can_be_user() {
        return;
    }
    let scratch = volume(format);
    let user = Some(ORDINARY_USER);
    chown(scratch.image(), user, user).unwrap();
    chown(scratch.dir.path(), user, user).unwrap();
    let at = |path: &str| scratch.inside(path);
    for arguments in [
        vec!["touch".to_owned(), at("/mine")],
        vec!["mv".to_owned(), at("/mine"), at("/a")],
        vec!["ln".to_owned(), "-s".to_owned(), "a/mine".to_owned(), at("/link")],
        vec!["chmod".to_owned(), "600".to_owned(), at("/a/mine")],
        vec!["chown".to_owned(), "0:0".to_owned(), at("/a/1")],
        vec!["chown".to_owned(), "12:13".to_owned(), at("/a/2")],
        vec!["truncate".to_owned(), "-s".to_owned(), "1K".to_owned(), at("/a/mine")],
        vec!["du".to_owned(), at("/")],
        vec!["df".to_owned(), at("/")],
    ] {
        let output = moafs_as_user(&arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let id = u64::from(ORDINARY_USER);
    assert_eq!((owner(&scratch, "/a/mine"), owner(&scratch, "/link")), ((id, id), (id, id)));
    assert_eq!((mode(&scratch, "/a/mine"), owner(&scratch, "/a/2")), ("0600".into(), (12, 13)));
    scratch.judge();
}

#[test]
fn the_manual_shows_each_command_that_the_help_lists() {
    let manual = include_str!("../../../docs/commands.md");
    let help = ok(&["--help"]);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands = listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let commands: Vec<&str> = commands.filter(|command| *command != "help").collect();
    assert!(commands.contains(&"mkfs") && commands.contains(&"df"), "{commands:?}");
    // A command has a line that shows its arguments, or a heading that names it.
    let words = |line: &'static str| line.split([' ', ',', ':']).collect::<Vec<_>>();
    let shows = |line: &'static str, command: &str| {
        line.starts_with(&format!("    moafs {command} ")) || line.starts_with("## ") && words(line).contains(&command)
    };
    for command in commands {
        assert!(manual.lines().any(|line| shows(line, command)), "docs/commands.md does not show `moafs {command}`");
    }
}
