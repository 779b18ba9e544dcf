//! Colours and markers: fixed per system by name, told apart also without colour, readable on light and on dark.
//!
//! The colours are Okabe and Ito's ("Color Universal Design", 2008) and two of Tol's, lifted for
//! dark backgrounds. The subject of the experiment (`cowrite`, `saf`, `recycling`…) is always
//! vermillion, its baseline blue. Pictures carry classes, no colours; [`rules`] gives the classes
//! their colours. No CSS variables: many programs that show SVGs do not know them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::outcome::{Cell, Outcome};

/// Colours of systems on light and on dark.
const COLOURS: [(&str, &str); 10] = [
    ("#d55e00", "#f0803c"),
    ("#0072b2", "#4ea6e0"),
    ("#767c85", "#a3abb5"),
    ("#009e73", "#2fc598"),
    ("#cc79a7", "#e094c0"),
    ("#e69f00", "#f2b632"),
    ("#56b4e9", "#8fd0f5"),
    ("#332288", "#9a8cf0"),
    ("#999933", "#c6c65a"),
    ("#882255", "#d0699f"),
];

/// The colour of every system known by name, as an index of [`COLOURS`].
const KNOWN: [(&str, usize); 22] = [
    ("adaptive", 5),
    ("auto", 6),
    ("btrfs", 5),
    ("cost-benefit", 1),
    ("cowrite", 0),
    ("ext2", 8),
    ("ext4", 3),
    ("f2fs", 6),
    ("ffs", 1),
    ("ffs-paper", 2),
    ("file-aware", 0),
    ("freebsd", 1),
    ("greedy", 2),
    ("hole-plug", 4),
    ("lfs", 7),
    ("ordinary", 1),
    ("partition", 1),
    ("recycling", 0),
    ("saf", 0),
    ("swap-partition", 1),
    ("wolf", 3),
    ("xfs", 4),
];

/// All cells of a layout map: class, colour on light and on dark, legend. The same colours as `moafs map`.
const CELLS: [(Cell, &str, &str, &str); 5] = [
    (Cell::Metadata, "#4d4d4d", "#9aa0a8", "metadata"),
    (Cell::Directory, "#e69f00", "#f2b632", "directories"),
    (Cell::Small, "#009e73", "#2fc598", "small files"),
    (Cell::Large, "#0072b2", "#4ea6e0", "large files"),
    (Cell::Free, "#e9ebee", "#2a2f37", "free"),
];

/// Light or dark background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ground {
    /// The background of screens by day, and of paper.
    Light,
    /// The background of screens by night.
    Dark,
}

/// The colours of the systems of a report.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<String, usize>);

impl Looks {
    /// Chooses the colours: known systems have their colour; others, in the order of their names,
    /// colours that no system here has yet, then any.
    pub(super) fn of(outcomes: &[Outcome]) -> Looks {
        let rows = outcomes.iter().flat_map(|outcome| outcome.rows.iter().map(|row| &row.system));
        let scatters = outcomes.iter().flat_map(|outcome| outcome.scatters.iter().flat_map(|all| all.points.keys()));
        let systems: BTreeSet<&String> = rows.chain(scatters).collect();
        let known: BTreeMap<&str, usize> = KNOWN.into();
        let mut looks: BTreeMap<String, usize> = systems
            .iter()
            .filter_map(|system| known.get(system.as_str()).map(|&look| ((*system).clone(), look)))
            .collect();
        let taken: BTreeSet<usize> = looks.values().copied().collect();
        let free: Vec<usize> =
            (0..COLOURS.len()).filter(|look| !taken.contains(look)).chain(0..COLOURS.len()).collect();
        let others: Vec<&String> = systems.into_iter().filter(|system| !known.contains_key(system.as_str())).collect();
        for (system, &look) in others.into_iter().zip(free.iter().cycle()) {
            looks.insert(system.clone(), look);
        }
        Looks(looks)
    }

    /// Returns the look of `system`: classes `fN` (filled), `kN` (stroked) and `bN` (in HTML) have
    /// its colour.
    pub(super) fn of_system(&self, system: &str) -> usize {
        self.0.get(system).copied().unwrap_or(0)
    }
}

/// Returns the class and the legend of a cell.
pub(super) fn cell(cell: Cell) -> (String, &'static str) {
    let index = CELLS.iter().position(|(each, ..)| *each == cell).unwrap_or(0);
    (format!("m{index}"), CELLS[index].3)
}

/// Returns all kinds of cells in the order of the legend.
pub(super) fn cells() -> impl Iterator<Item = Cell> {
    CELLS.iter().map(|(cell, ..)| *cell)
}

/// Returns the CSS rules of pictures on `ground`.
pub(super) fn rules(ground: Ground) -> String {
    let pick = |light: &'static str, dark: &'static str| if ground == Ground::Light { light } else { dark };
    let (sheet, ink) = (pick("#ffffff", "#14161a"), pick("#1c1f24", "#e6e9ed"));
    let (soft, grid, axis) = (pick("#59616c", "#9da6b1"), pick("#e3e6ea", "#2b3038"), pick("#8b939d", "#6c7580"));
    let mut css = format!(
        "text{{font-family:Inter,system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif}}\n\
         .ink{{fill:{ink}}}.soft{{fill:{soft}}}.sheet{{fill:{sheet}}}.bold{{font-weight:600}}\n\
         .grid{{stroke:{grid};fill:none}}.axis{{stroke:{axis};fill:none}}\
         .error{{stroke:{ink};fill:none;stroke-width:1.2}}\
         .mark{{stroke:{ink};fill:none;stroke-width:1.6;stroke-dasharray:4 2.5}}\
         .hollow{{stroke:{ink};fill:{sheet};stroke-width:1.3}}\n"
    );
    for (index, (light, dark)) in COLOURS.iter().enumerate() {
        let colour = pick(light, dark);
        // Writing to a String cannot fail.
        let _ = write!(css, ".f{index}{{fill:{colour}}}.k{index}{{stroke:{colour}}}");
    }
    css.push('\n');
    for (index, (_, light, dark, _)) in CELLS.iter().enumerate() {
        let colour = pick(light, dark);
        let _ = write!(css, ".m{index}{{stroke:{colour};fill:{colour}}}");
    }
    css.push('\n');
    css
}

/// Returns the CSS rules of the swatches beside systems' names in HTML, on `ground`.
pub(super) fn swatches(ground: Ground) -> String {
    let mut css = String::new();
    for (index, (light, dark)) in COLOURS.iter().enumerate() {
        let colour = if ground == Ground::Light { light } else { dark };
        let _ = write!(css, ".b{index}{{background:{colour}}}");
    }
    css.push('\n');
    css
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Row;

    fn with(systems: &[&str]) -> Looks {
        let row = |system: &&str| Row {
            system: (*system).to_owned(),
            dimensions: BTreeMap::new(),
            metric: String::new(),
            value: 0.0,
            unit: String::new(),
            paper: None,
            interval: None,
        };
        Looks::of(&[Outcome { rows: systems.iter().map(row).collect(), ..Outcome::default() }])
    }

    #[test]
    fn known_systems_keep_their_colour_in_any_company() {
        let (alone, all) = (with(&["cowrite"]), with(&["zfs", "cowrite", "aufs", "ffs", "ffs-paper"]));
        assert_eq!(alone.of_system("cowrite"), all.of_system("cowrite"));
        let looks: BTreeSet<usize> = ["zfs", "aufs", "cowrite", "ffs", "ffs-paper"].map(|s| all.of_system(s)).into();
        assert_eq!(looks.len(), 5, "every system has its own colour");
    }

    #[test]
    fn more_systems_than_colours_still_have_a_colour() {
        let names: Vec<String> = (0..50).map(|number| format!("system-{number}")).collect();
        let looks = with(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(names.iter().all(|name| looks.of_system(name) < COLOURS.len()));
    }

    #[test]
    fn the_list_of_known_systems_is_sorted_and_within_the_colours() {
        assert!(KNOWN.windows(2).all(|two| two[0].0 < two[1].0));
        assert!(KNOWN.iter().all(|(_, look)| *look < COLOURS.len()));
    }
}
