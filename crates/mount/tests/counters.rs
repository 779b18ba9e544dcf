//! The tables of `docs/counters.md` are those that the declarations of the counters say.
//!
//! `UPDATE_DOCS=1` writes them anew.

use std::fmt::Write as _;
use std::path::PathBuf;

type Texts = &'static [(&'static str, &'static str)];

const TABLES: [(&str, &[Texts]); 3] = [
    ("`vfs`: every volume", &[moafs_vfs::counters::Counters::TEXTS]),
    ("`engine`: F2FS", &[moafs_f2fs::engine::LogCounters::TEXTS, moafs_f2fs::engine::Counters::TEXTS]),
    ("`swap`: while it is on", &[moafs_swap::Counters::TEXTS]),
];

fn document() -> String {
    let mut text = String::from(
        "# Counters\n\nThe counters in `.moafs/stats` and `.moafs/swap`, as `moafs stat` and `moafs top` show them. All count from the mount,\n\
         but for those that say *now*.\n",
    );
    for (title, tables) in TABLES {
        let _ = write!(text, "\n## {title}\n\n| counter | meaning |\n|---|---|\n");
        // A group of counters is shown as its counters are.
        let rows = tables.iter().flat_map(|texts| texts.iter()).filter(|(name, _)| *name != "logs");
        for (name, meaning) in rows {
            let _ = writeln!(text, "| `{name}` | {} |", meaning.trim_end_matches('.'));
        }
    }
    text
}

#[test]
fn the_documented_counters_are_those_that_exist() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/counters.md");
    let text = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).expect("docs can be written");
    }
    let written = std::fs::read_to_string(&path).expect("docs/counters.md is there");
    assert!(text == written, "docs/counters.md is not what the declarations say; UPDATE_DOCS=1 writes it");
}
