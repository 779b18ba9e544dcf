//! All pictures of an outcome, each with the name of its file.

use super::chart::{self, Undrawn};
use super::layout;
use super::scatter;
use super::style::Looks;
use super::svg::Picture;
use crate::outcome::{Outcome, Scatter};

/// Most pictures of a kind that are drawn.
const PICTURES_MAX: usize = 64;

/// A picture and its file's name without the ending.
#[derive(Debug)]
pub(super) struct Drawn {
    pub(super) stem: String,
    pub(super) picture: Picture,
}

/// The panels of a scatter, by system.
pub(super) type Panels<'a> = Vec<(&'a str, Drawn)>;

/// The pictures of an outcome; or the reason why there is none.
#[derive(Debug)]
pub(super) struct Pictures<'a> {
    pub(super) charts: Vec<(&'a str, Result<Drawn, Undrawn>)>,
    pub(super) scatters: Vec<(&'a Scatter, Result<Panels<'a>, Undrawn>)>,
    pub(super) maps: Vec<(&'a str, Result<Drawn, Undrawn>)>,
}

impl<'a> Pictures<'a> {
    pub(super) fn of(outcome: &'a Outcome, looks: &Looks) -> Pictures<'a> {
        let id = &outcome.experiment;
        let named =
            |kind: &str, index: usize, picture: Picture| Drawn { stem: format!("{id}.{kind}-{}", index + 1), picture };
        let charts = outcome.charts.iter().enumerate().take(PICTURES_MAX).map(|(index, chart)| {
            let drawn = chart::draw(chart, &outcome.rows, looks);
            (chart.title.as_str(), drawn.map(|picture| named("chart", index, picture)))
        });
        let scatters = outcome.scatters.iter().enumerate().take(PICTURES_MAX).map(|(index, scatter)| {
            let panel = |(number, (system, picture)): (usize, (&'a str, Picture))| {
                // The name is used if a file's name can hold it; the number keeps names apart.
                let safe = system.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
                let suffix = if safe { format!("{}-{system}", number + 1) } else { format!("{}", number + 1) };
                let mut drawn = named("scatter", index, picture);
                drawn.stem = format!("{}.{suffix:.64}", drawn.stem);
                (system, drawn)
            };
            let panels = scatter::draw(scatter, looks);
            (scatter, panels.map(|panels| panels.into_iter().enumerate().map(panel).collect()))
        });
        let maps =
            outcome.maps.iter().enumerate().take(PICTURES_MAX).map(|(index, map)| {
                (map.title.as_str(), layout::draw(map).map(|picture| named("map", index, picture)))
            });
        Pictures { charts: charts.collect(), scatters: scatters.collect(), maps: maps.collect() }
    }

    /// Returns all pictures that are drawn.
    pub(super) fn drawn(&self) -> impl Iterator<Item = &Drawn> {
        let charts = self.charts.iter().filter_map(|(_, drawn)| drawn.as_ref().ok());
        let scatters = self.scatters.iter().filter_map(|(_, panels)| panels.as_ref().ok());
        let maps = self.maps.iter().filter_map(|(_, drawn)| drawn.as_ref().ok());
        charts.chain(scatters.flatten().map(|(_, drawn)| drawn)).chain(maps)
    }
}
