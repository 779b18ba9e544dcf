//! `moafs find`, with the tests that find(1) has.

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use support::{Format, Mounted, Scratch, can_mount, fails, moafs, ok};

support::tests_of_ext4_and_f2fs! {
    find_names_what_has_certain_properties,
    find_goes_on_after_a_failure,
    find_looks_through_a_mount,
}

fn volume(format: Format) -> Scratch {
    let scratch = Scratch::with_volume(format);
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("src/deep/deeper")).unwrap();
    fs::write(tree.join("src/a.c"), [1; 100]).unwrap();
    fs::write(tree.join("src/B.C"), [1; 5000]).unwrap();
    fs::write(tree.join("src/deep/c.h"), vec![1; 2 << 20]).unwrap();
    fs::write(tree.join("src/deep/deeper/.hidden.c"), []).unwrap();
    symlink("deep", tree.join("src/link")).unwrap();
    ok(&["cp", "-a", &tree.join("src").display().to_string(), &scratch.inside("/")]);
    scratch
}

/// Returns the paths below `/src` that are found, without image and `/src/`.
fn found(scratch: &Scratch, tests: &[&str]) -> Vec<String> {
    let listed = ok(&[&["find", &scratch.inside("/src")], tests].concat());
    let head = scratch.inside("/src");
    let name = |line: &str| line.strip_prefix(&head).expect("a path below").trim_start_matches('/').to_owned();
    listed.lines().map(name).collect()
}

fn find_names_what_has_certain_properties(format: Format) {
    let scratch = volume(format);
    let all = ["", "B.C", "a.c", "deep", "deep/c.h", "deep/deeper", "deep/deeper/.hidden.c", "link"];
    assert_eq!(found(&scratch, &[]), all);
    assert_eq!(found(&scratch, &["-print"]), all);
    assert_eq!(found(&scratch, &["-name", "*.c"]), ["a.c", "deep/deeper/.hidden.c"]);
    assert_eq!(found(&scratch, &["-iname", "*.c"]), ["B.C", "a.c", "deep/deeper/.hidden.c"]);
    assert_eq!(found(&scratch, &["-name", "*.?", "-name", "[!aB]*"]), ["deep/c.h", "deep/deeper/.hidden.c"]);
    assert_eq!(found(&scratch, &["-type", "d"]), ["", "deep", "deep/deeper"]);
    assert_eq!(found(&scratch, &["-type", "l,d", "-maxdepth", "1"]), ["", "deep", "link"]);
    assert_eq!(found(&scratch, &["-mindepth", "2", "-maxdepth", "2"]), ["deep/c.h", "deep/deeper"]);
    assert_eq!(found(&scratch, &["-maxdepth", "0"]), [""]);
    assert_eq!(found(&scratch, &["-type", "f", "-size", "+1M"]), ["deep/c.h"]);
    assert_eq!(found(&scratch, &["-type", "f", "-size", "-1k"]), ["deep/deeper/.hidden.c"]);
    assert_eq!(found(&scratch, &["--type", "f", "--size", "100c"]), ["a.c"]);
    ok(&["touch", "-d", "2001-01-01", &scratch.inside("/src/a.c")]);
    ok(&["touch", "-t", "200101010000.01", &scratch.inside("/src/B.C")]);
    assert_eq!(found(&scratch, &["-name", "?.[cC]", "-newer", &scratch.inside("/src/a.c")]), ["B.C"]);
    let host = scratch.path("new").display().to_string();
    fs::write(&host, []).unwrap();
    assert!(found(&scratch, &["-newer", &host, "-type", "f"]).is_empty());
    let named = moafs(&["find", &scratch.inside("/src"), "-name", "a*", "-print0"]).stdout;
    assert_eq!(named, [scratch.inside("/src/a.c").as_bytes(), b"\0"].concat());
    let image = scratch.image();
    let words = ok(&["find", &image.display().to_string(), "/src/deep", "/src/link", "-maxdepth", "0"]);
    assert_eq!(words, format!("{}\n{}\n", scratch.inside("/src/deep"), scratch.inside("/src/link")));
    assert_eq!(ok(&["find", &image.display().to_string(), "-name", "/"]), format!("{}:/\n", image.display()));
    let name = [b"/\xff\n".as_slice()].concat();
    let strange = [image.as_os_str().as_bytes(), b":", &name].concat();
    let strange = std::ffi::OsStr::from_bytes(&strange);
    ok(&["touch".as_ref(), strange]);
    let named = moafs(&["find", &scratch.inside("/"), "-name", "*\n", "-print0"]).stdout;
    assert_eq!(named, [strange.as_bytes(), b"\0"].concat());
}

fn find_goes_on_after_a_failure(format: Format) {
    let scratch = volume(format);
    let output = moafs(&["find", &scratch.inside("/none"), &scratch.inside("/src/deep"), "-name", "c.h"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", scratch.inside("/src/deep/c.h")));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/none: No such file"));
    for wrong in [&["-type", "x"][..], &["-size", "big"], &["-size", "1K"], &["-perm", "644"], &["-name"], &[]] {
        let arguments = [&["find"][..], wrong].concat();
        assert_eq!(fails(&arguments).0, 2, "{wrong:?}");
    }
    assert!(fails(&["find", &scratch.inside("/"), "-newer", "/no/such"]).1.contains("/no/such: No such file"));
}

fn find_looks_through_a_mount(format: Format) {
    if !can_mount() {
        return;
    }
    let scratch = volume(format);
    let mounted = Mounted::new(&scratch, "");
    fs::write(mounted.path("src/live.c"), [1; 10]).unwrap();
    assert_eq!(found(&scratch, &["-name", "l*"]), ["link", "live.c"]);
    mounted.unmount();
}
