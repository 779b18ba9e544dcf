//! Commands on volumes whose directories have several parents, or contain themselves: every walk ends.

mod support;

use std::fs;

use support::{Format, Scratch, fails, moafs_in_time, ok};

support::tests_of_both! {
    listings_of_cyclic_trees_end_and_show_the_rest,
    copies_of_cyclic_trees_end,
    removals_stay_within_their_tree,
    surveys_and_changes_of_cyclic_trees_end,
}

/// `/top-directory/middle-directory` with two directories in it: `inner-directory`, which is redirected, and
/// `other-directory` with a file.
struct Tree {
    scratch: Scratch,
    format: Format,
}

impl Tree {
    fn new(format: Format) -> Tree {
        let scratch = Scratch::with_plain_volume(format);
        ok(&["mkdir", "-p", &scratch.inside("/top-directory/middle-directory/inner-directory")]);
        ok(&["mkdir", &scratch.inside("/top-directory/middle-directory/other-directory")]);
        let file = scratch.path("file");
        fs::write(&file, b"contents").unwrap();
        let other = "/top-directory/middle-directory/other-directory/file";
        ok(&["cp".to_owned(), file.display().to_string(), scratch.inside(other)]);
        ok(&["cp".to_owned(), file.display().to_string(), scratch.inside("/bystander")]);
        Tree { scratch, format }
    }

    fn ino(&self, path: &str) -> u32 {
        let stat: serde_json::Value =
            serde_json::from_str(&ok(&["stat", "--json", &self.scratch.inside(path)])).unwrap();
        u32::try_from(stat["ino"].as_u64().unwrap()).unwrap()
    }

    /// Makes `inner-directory` another name of the directory `to`.
    fn redirect(&self, to: &str) {
        let inner = "/top-directory/middle-directory/inner-directory";
        let (from, to) = (self.ino(inner).to_le_bytes(), self.ino(to).to_le_bytes());
        let mut bytes = fs::read(self.scratch.image()).unwrap();
        let name = b"inner-directory";
        let places: Vec<usize> = match self.format {
            // Number, length of the entry, length of the name, type, name.
            Format::Ext2 | Format::Ext4 => (8..bytes.len() - name.len())
                .filter(|at| &bytes[*at..at + name.len()] == name && bytes[at - 8..at - 4] == from)
                .map(|at| at - 8)
                .collect(),
            // Number, length of the name, type; names are elsewhere.
            Format::F2fs => {
                let entry = [&from[..], &[name.len() as u8, 0, 2]].concat();
                (0..bytes.len() - entry.len()).filter(|at| bytes[*at..at + entry.len()] == entry).collect()
            }
        };
        assert!(!places.is_empty(), "the entry was not found");
        places.iter().for_each(|at| bytes[*at..at + 4].copy_from_slice(&to));
        fs::write(self.scratch.image(), bytes).unwrap();
        assert_eq!(u32::from_le_bytes(to), self.ino(inner));
    }

    /// Returns each way in which a directory can be found again.
    fn each(format: Format) -> impl Iterator<Item = Tree> {
        let places = [
            "/",
            "/top-directory",
            "/top-directory/middle-directory",
            "/top-directory/middle-directory/other-directory",
        ];
        places.into_iter().map(move |place| {
            let tree = Tree::new(format);
            tree.redirect(place);
            tree
        })
    }
}

fn listings_of_cyclic_trees_end_and_show_the_rest(format: Format) {
    for tree in Tree::each(format) {
        for arguments in [&["ls", "-R"][..], &["ls", "-lR"], &["ls", "-R", "--json"]] {
            let root = tree.scratch.inside("/");
            let all = [arguments, &[&root]].concat();
            let output = moafs_in_time(&all);
            let (listed, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
            assert_eq!(output.status.code(), Some(1), "{all:?}: {said}");
            assert!(said.contains("met before"), "{said}");
            // The entries after the damaged one were listed.
            assert!(listed.contains("other-directory") && listed.len() < 20_000, "{listed}");
            if arguments.contains(&"--json") {
                let entries: serde_json::Value = serde_json::from_str(&listed).unwrap();
                let paths = || entries["files"].as_array().unwrap().iter().filter_map(|entry| entry["path"].as_str());
                assert!(paths().any(|path| path.ends_with("/file")), "{listed}");
            }
        }
    }
}

fn copies_of_cyclic_trees_end(format: Format) {
    for tree in Tree::each(format) {
        for option in ["-r", "-a"] {
            let out = tree.scratch.path(&format!("out{option}"));
            let source = tree.scratch.inside("/top-directory");
            let output = moafs_in_time(&["cp".to_owned(), option.into(), source, out.display().to_string()]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("met before"), "{said}");
            let middle = out.join("middle-directory");
            let one = |name: &str| fs::read(middle.join(name).join("file")).ok();
            assert!([one("other-directory"), one("inner-directory")].contains(&Some(b"contents".to_vec())), "{said}");
        }
    }
}

fn removals_stay_within_their_tree(format: Format) {
    for tree in Tree::each(format) {
        let output = moafs_in_time(&["rm", "-r", &tree.scratch.inside("/top-directory")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(ok(&["cat", &tree.scratch.inside("/bystander")]), "contents", "{said}");
    }
}

fn surveys_and_changes_of_cyclic_trees_end(format: Format) {
    for tree in Tree::each(format) {
        let image = tree.scratch.image().display().to_string();
        let picture = tree.scratch.path("map.svg").display().to_string();
        for (arguments, code) in [
            (&["info", "--json", &image][..], 0),
            (&["map", &image, "-o", &picture], 0),
            (&["du", &image], 1),
            (&["chmod", "-R", "a+r", &image], 1),
            (&["defrag", "-n", &image], 1),
            (&["defrag", "-q", &image], 1),
        ] {
            let output = moafs_in_time(arguments);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
            assert_eq!(said.contains("met before"), code == 1, "{arguments:?}: {said}");
        }
    }
}

#[test]
fn a_listing_goes_on_after_an_entry_that_cannot_be_read() {
    let tree = Tree::new(Format::Ext2);
    let inner = tree.ino("/top-directory/middle-directory/inner-directory").to_le_bytes();
    let mut bytes = fs::read(tree.scratch.image()).unwrap();
    let name = b"inner-directory";
    let at = (8..bytes.len()).find(|at| bytes[*at..].starts_with(name) && bytes[at - 8..at - 4] == inner).unwrap();
    // An inode that is free.
    bytes[at - 8..at - 4].copy_from_slice(&500_u32.to_le_bytes());
    fs::write(tree.scratch.image(), bytes).unwrap();
    let output = moafs_in_time(&["ls", "-R", &tree.scratch.inside("/")]);
    let listed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(listed.contains("other-directory:\nfile\n"), "{listed}");
    let (_, message) = fails(&["rm", "-r", &tree.scratch.inside("/top-directory")]);
    assert!(message.contains("inner-directory"), "{message}");
}
