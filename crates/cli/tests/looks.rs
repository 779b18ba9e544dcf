//! Commands that look at files of volumes, and the options that coreutils have for them.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Format, Scratch, fails, moafs, ok};

support::tests_of_ext4_and_f2fs! {
    ls_lists_files_before_directories_below_heads,
    ls_follows_a_link_to_a_directory_where_it_is_given,
    ls_shows_sizes_times_and_colours_as_asked,
    ls_lists_in_the_order_that_is_asked_for,
    cat_prints_several_files_and_goes_on_after_a_failure,
    stat_shows_several_files,
    times_are_local_for_people_and_utc_in_json,
    du_stops_at_a_depth,
    touch_takes_dates_and_references,
    mv_asks_before_it_replaces,
    cp_follows_links_as_it_is_told,
    cp_names_what_it_copies,
}

/// Makes a volume with a small tree.
fn volume(format: Format) -> Scratch {
    let scratch = Scratch::with_volume(format);
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("dir/deep/deeper")).unwrap();
    fs::write(tree.join("one"), b"1\n").unwrap();
    fs::write(tree.join("two"), b"22\n").unwrap();
    fs::write(tree.join("dir/three"), vec![b'3'; 3000]).unwrap();
    fs::write(tree.join("dir/deep/deeper/four"), vec![b'4'; 40_000]).unwrap();
    symlink("dir", tree.join("link")).unwrap();
    ok(&["cp", "-a", &format!("{}/.", tree.display()), &scratch.inside("/")]);
    scratch
}

/// Runs the command in a time zone, with input.
fn in_zone(zone: &str, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moafs"));
    command.args(arguments).env("TZ", zone).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn stat(scratch: &Scratch, path: &str) -> Value {
    serde_json::from_str(&ok(&["stat", "--json", &scratch.inside(path)])).unwrap()
}

fn ls_lists_files_before_directories_below_heads(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    assert_eq!(
        ok(&["ls", &at("/dir/deep"), &at("/two"), &at("/dir"), &at("/one")]),
        "/one\n/two\n\n/dir:\ndeep\nthree\n\n/dir/deep:\ndeeper\n"
    );
    assert_eq!(
        ok(&["ls", &scratch.image().display().to_string(), "/dir/deep", "/one"]),
        "/one\n\n/dir/deep:\ndeeper\n"
    );
    assert_eq!(ok(&["ls", "-1", &at("/dir")]), "deep\nthree\n");
    assert_eq!(ok(&["ls", "-d", &at("/dir"), &at("/one")]), "/dir\n/one\n");
    let output = moafs(&["ls", &at("/none"), &at("/dir/deep"), &at("/nothing")]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "/dir/deep:\ndeeper\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr).matches("No such file").count(), 2);
    let other = volume(format);
    let head = format!("{}:/dir/deep:\ndeeper\n", scratch.image().display());
    assert!(ok(&["ls", &at("/dir/deep"), &other.inside("/dir/deep")]).starts_with(&head));
    let all: Value = serde_json::from_str(&ok(&["ls", "--json", &at("/dir/deep"), &at("/one")])).unwrap();
    let all = &all["files"];
    assert_eq!((&all[0]["path"], &all[1]["path"]), (&"/one".into(), &"/dir/deep/deeper".into()));
    assert_eq!(all[0]["image"], scratch.image().display().to_string());
}

fn ls_follows_a_link_to_a_directory_where_it_is_given(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    assert_eq!(ok(&["ls", &at("/link")]), "deep\nthree\n");
    assert!(ok(&["ls", "-l", &at("/link")]).ends_with("/link -> dir\n"));
    assert_eq!(ok(&["ls", "-l", &at("/link/")]).lines().count(), 2);
}

fn ls_shows_sizes_times_and_colours_as_asked(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    ok(&["touch", "-d", "2026-03-01T12:30:00.5Z", &at("/dir/three")]);
    let line = |options: &[&str]| in_zone("UTC-2", &[&["ls"], options, &[&at("/dir/three")]].concat(), "");
    assert!(line(&["-l"]).contains(" 3000 2026-03-01 14:30:00 +0200 /dir/three"), "{}", line(&["-l"]));
    assert!(line(&["-lh", "--time-style=long-iso"]).contains("2.9 KiB 2026-03-01 14:30 /dir"));
    assert!(line(&["-l", "--time-style=full-iso"]).contains("14:30:00.500000000 +0200"));
    assert!(line(&["-l", "--time-style=+%H:%M"]).contains(" 14:30 /dir"));
    assert_eq!(fails(&["ls", "-l", "--time-style=short", &at("/")]).0, 2);
    assert!(ok(&["ls", "--color", &at("/")]).contains("\x1b[01;34mdir\x1b[0m\n"));
    assert!(!ok(&["ls", "--color=auto", &at("/")]).contains('\x1b'));
}

fn ls_lists_in_the_order_that_is_asked_for(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    for (path, day, size) in [("/o/a", "2026-03-02", "10"), ("/o/b", "2026-03-03", "30"), ("/o/c", "2026-03-01", "10")]
    {
        ok(&["mkdir", "-p", &at("/o")]);
        ok(&["truncate", "-s", size, &at(path)]);
        ok(&["touch", "-d", day, &at(path)]);
    }
    let order = |options: &[&str]| ok(&[&["ls"], options, &[&at("/o")]].concat()).replace('\n', " ");
    assert_eq!(order(&["-t"]), "b a c ");
    assert_eq!(order(&["-tr"]), "c a b ");
    assert_eq!(order(&["-S"]), "b a c ");
    assert_eq!(order(&["-S", "-r"]), "c a b ");
    assert_eq!(order(&["-t", "-S", "-r"]), "c a b ", "the last one of -t and -S holds");
    assert_eq!(order(&["-r"]), "c b a ");
    // Files that are given come before directories, whatever the order.
    let listed = ok(&["ls", "-tr", &at("/o"), &at("/o/b"), &at("/o/c")]);
    assert!(listed.starts_with("/o/c\n/o/b\n\n/o:\nc\n"), "{listed}");
}

fn cat_prints_several_files_and_goes_on_after_a_failure(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    assert_eq!(ok(&["cat", &at("/one"), &at("/two"), &at("/one")]), "1\n22\n1\n");
    let output = moafs(&["cat", &at("/one"), &at("/none"), &at("/dir"), &at("/two")]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b"1\n22\n"[..]));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 2);
}

fn stat_shows_several_files(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    let text = ok(&["stat", &at("/one"), &at("/dir/three")]);
    assert!(text.contains("/one: file") && text.contains("/dir/three: file"), "{text}");
    let objects = ok(&["stat", "--json", &at("/one"), &at("/link")]);
    let objects: Vec<Value> = serde_json::Deserializer::from_str(&objects).into_iter().map(Result::unwrap).collect();
    assert!(objects.iter().all(|object| object["schema"] == 1), "{objects:?}");
    assert_eq!((&objects[0]["kind"], &objects[1]["kind"]), (&"file".into(), &"symlink".into()));
    let followed: Value = serde_json::from_str(&ok(&["stat", "-L", "--json", &at("/link")])).unwrap();
    assert_eq!(followed["kind"], "directory");
    let (code, said) = fails(&["stat", &at("/none"), &at("/one")]);
    assert!(code == 1 && said.contains("/none: No such file"), "{said}");
}

fn times_are_local_for_people_and_utc_in_json(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    ok(&["touch", "-d", "@1772368200.000000005", &at("/one")]);
    let shown = |zone: &str| in_zone(zone, &["stat", &at("/one")], "");
    assert!(shown("UTC").contains("2026-03-01 12:30:00 +0000"), "{}", shown("UTC"));
    assert!(shown("UTC+3:30").contains("2026-03-01 09:00:00 -0330"), "{}", shown("UTC+3:30"));
    assert!(
        in_zone("UTC-1", &["stat", "--json", &at("/one")], "")
            .contains("\"mtime\": \"2026-03-01T12:30:00.000000005Z\"")
    );
    if format == Format::Ext4 {
        let image = scratch.image().display().to_string();
        let facts: Value = serde_json::from_str(&ok(&["info", "-H", "--json", &image])).unwrap();
        let made = facts["superblock"]["made"].as_str().unwrap();
        assert!(made.starts_with("20") && made.ends_with(".000000000Z"), "{made}");
    }
}

fn du_stops_at_a_depth(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    let all = ok(&["du", &at("/dir")]);
    let lines = |depth: &str| ok(&["du", "-d", depth, &at("/dir")]);
    assert_eq!(all.lines().count(), 3);
    assert_eq!(lines("5"), all);
    assert_eq!(lines("1").lines().collect::<Vec<_>>(), all.lines().skip(1).collect::<Vec<_>>());
    assert_eq!(lines("0"), ok(&["du", "-s", &at("/dir")]));
    assert_eq!(ok(&["du", "--max-depth=0", &at("/dir")]), lines("0"));
    assert_eq!(fails(&["du", "-s", "-d", "1", &at("/dir")]).0, 2);
}

fn touch_takes_dates_and_references(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    let times = |path: &str| {
        let stat = stat(&scratch, path);
        [&stat["atime"], &stat["mtime"]].map(|time| time.as_str().unwrap()[..19].to_owned())
    };
    ok(&["touch", "-d", "2001-02-03T04:05:06Z", &at("/one"), &at("/new")]);
    assert_eq!(times("/one"), ["2001-02-03T04:05:06"; 2]);
    assert_eq!(times("/new"), times("/one"));
    ok(&["touch", "-a", "-d", "2002-02-03T04:05:06Z", &at("/one")]);
    ok(&["touch", "-m", "-d", "2003-02-03T04:05:06Z", &at("/one")]);
    assert_eq!(times("/one"), ["2002-02-03T04:05:06", "2003-02-03T04:05:06"]);
    ok(&["touch", "-r", &at("/one"), &at("/two")]);
    assert_eq!(times("/two"), times("/one"));
    ok(&["touch", "-m", "-r", &at("/new"), &at("/two")]);
    assert_eq!(times("/two"), ["2002-02-03T04:05:06", "2001-02-03T04:05:06"]);
    let host = scratch.path("tree/one");
    fs::File::options()
        .write(true)
        .open(&host)
        .unwrap()
        .set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000))
        .unwrap();
    ok(&["touch", "-r", host.to_str().unwrap(), &at("/two")]);
    assert_eq!(times("/two")[1], "2001-09-09T01:46:40");
    ok(&["touch", "-h", "-d", "@0", &at("/link"), &at("/nothing")]);
    assert_eq!((times("/link")[1].as_str(), times("/dir")[1].starts_with("1970")), ("1970-01-01T00:00:00", false));
    assert!(fails(&["stat", &at("/nothing")]).1.contains("No such file"));
    assert_eq!(fails(&["touch", "-d", "soon", &at("/one")]).0, 2);
    assert_eq!(fails(&["touch", "-r", &at("/none"), &at("/one")]).0, 1);
    scratch.judge();
}

fn mv_asks_before_it_replaces(format: Format) {
    let scratch = volume(format);
    let at = |path: &str| scratch.inside(path);
    in_zone("UTC", &["mv", "-i", &at("/one"), &at("/two")], "no\n");
    assert_eq!(ok(&["cat", &at("/two")]), "22\n");
    in_zone("UTC", &["mv", "-n", "-i", &at("/one"), &at("/two")], "");
    assert_eq!(ok(&["cat", &at("/one")]), "1\n");
    in_zone("UTC", &["mv", "-i", "-n", &at("/one"), &at("/two")], "y\n");
    assert_eq!(ok(&["cat", &at("/two")]), "22\n");
    in_zone("UTC", &["mv", "-i", &at("/one"), &at("/fresh")], "");
    in_zone("UTC", &["mv", "-n", "-i", &at("/fresh"), &at("/two")], "yes\n");
    assert_eq!(ok(&["cat", &at("/two")]), "1\n");
    scratch.judge();
}

/// Makes a tree with links to a file, a directory, nothing, and the directory above.
fn make_links(tree: &Path) {
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::create_dir_all(tree.join("far/inner")).unwrap();
    fs::write(tree.join("far/inner/file"), b"contents").unwrap();
    symlink("../far/inner", tree.join("sub/to-dir")).unwrap();
    symlink("../far/inner/file", tree.join("sub/to-file")).unwrap();
    symlink("../far/inner", tree.join("sub/again")).unwrap();
    symlink("sub", tree.join("to-sub")).unwrap();
}

fn cp_follows_links_as_it_is_told(format: Format) {
    let scratch = Scratch::with_volume(format);
    let tree = scratch.path("links");
    make_links(&tree);
    ok(&["cp", "-a", tree.to_str().unwrap(), &scratch.inside("/")]);
    let out = scratch.path("out");
    // The same on the host and on the volume: each is copied to the host.
    for from in [tree.display().to_string(), scratch.inside("/links")] {
        let copied = |options: &[&str], source: &str| {
            let _ = fs::remove_dir_all(&out);
            fs::create_dir(&out).unwrap();
            let source = format!("{from}/{source}");
            let output = moafs(&[&["cp"], options, &[&source, out.to_str().unwrap()]].concat());
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let is_link = |path: &str| out.join(path).is_symlink();
        // Without -r the file that a link leads to is copied, as cp(1) does it.
        assert!(copied(&[], "sub/to-file").0 && !is_link("to-file"));
        assert_eq!(fs::read(out.join("to-file")).unwrap(), b"contents");
        assert!(copied(&["-P"], "sub/to-file").0 && is_link("to-file"));
        assert!(!copied(&[], "sub/to-dir").0);
        // With -r links stay links, but those that are given if -H says so.
        assert!(copied(&["-r"], "to-sub").0 && is_link("to-sub"));
        assert!(copied(&["-rH"], "to-sub").0 && !is_link("to-sub") && is_link("to-sub/to-dir"));
        assert!(copied(&["-a"], "to-sub").0 && is_link("to-sub"));
        // With -L all are followed, one directory by several links.
        assert!(copied(&["-rL"], "to-sub").0 && !is_link("to-sub/to-dir"));
        for path in ["to-sub/to-dir/file", "to-sub/again/file", "to-sub/to-file"] {
            assert_eq!(fs::read(out.join(path)).unwrap(), b"contents", "{path}");
        }
        assert!(copied(&["-rL", "-P"], "to-sub").0 && is_link("to-sub"));
    }
    // A link that leads nowhere, and one that leads back, are told; the rest is copied.
    symlink("nothing", tree.join("sub/broken")).unwrap();
    symlink("..", tree.join("sub/back")).unwrap();
    let (code, said) = fails(&["cp", "-rL", tree.to_str().unwrap(), &scratch.inside("/followed")]);
    assert!(code == 1 && said.contains("leads nowhere") && said.contains("leads back"), "{said}");
    assert_eq!(ok(&["cat", &scratch.inside("/followed/sub/to-dir/file")]), "contents");
    scratch.judge();
}

fn cp_names_what_it_copies(format: Format) {
    let scratch = Scratch::with_volume(format);
    let tree = scratch.path("links");
    make_links(&tree);
    let (from, to) = (tree.display().to_string(), scratch.inside("/links"));
    let said = ok(&["cp", "-rv", &from, &to]);
    assert!(said.starts_with(&format!("'{from}' -> '{to}'\n")), "{said}");
    assert!(said.contains(&format!("'{from}/far/inner/file' -> '{to}/far/inner/file'\n")), "{said}");
    assert_eq!(said.lines().count(), 9);
    let told = moafs(&["cp", "--stats", "-r", &to, scratch.path("back").to_str().unwrap()]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("9 files"), "{told}");
}
