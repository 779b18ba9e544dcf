//! The report as one HTML file: no scripts, nothing loaded from elsewhere, light and dark as the reader has it, and fit
//! for paper. Links lead to the files beside it (CSV, JSON, pictures), which it does not need.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::chart::{Undrawn, dimension_title};
use super::compare::{Comparison, Line, comparisons};
use super::number::{self, Decimals, NONE};
use super::pictures::{Drawn, Pictures};
use super::style::{self, Ground, Looks};
use super::svg::Escaped;
use crate::outcome::{Outcome, Row};

/// Most rows in a table of all numbers; the CSV has the rest.
const ROWS_MAX: usize = 2000;

/// HTML under construction. Writing to a String cannot fail.
macro_rules! add {
    ($html:expr, $($arguments:tt)*) => {{ let _ = writeln!($html, $($arguments)*); }};
}

/// Writes the page with a section for each outcome.
pub(super) fn page(outcomes: &[Outcome], pictures: &[Pictures<'_>], looks: &Looks) -> String {
    let (light, dark) = (style::rules(Ground::Light), style::rules(Ground::Dark));
    let (light, dark) = (light + &style::swatches(Ground::Light), dark + &style::swatches(Ground::Dark));
    let mut html = String::new();
    add!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"moafs lab\">\n<title>moafs lab: {}</title>\n<style>\n{}{light}\
         @media screen and (prefers-color-scheme:dark){{\n{dark}}}\n</style>\n</head>\n<body>",
        Escaped(&page_title(outcomes)),
        include_str!("page.css"),
    );
    header(&mut html, outcomes);
    add!(html, "<main>");
    for (outcome, pictures) in outcomes.iter().zip(pictures) {
        section(&mut html, outcome, pictures, looks);
    }
    add!(
        html,
        "</main>\n<footer><p>Made by <code>moafs lab</code>. Ours was measured in virtual time on modelled \
                disks: the same seed gives the same numbers. The paper’s numbers are quoted from it.</p></footer>"
    );
    add!(html, "</body>\n</html>");
    html
}

fn page_title(outcomes: &[Outcome]) -> String {
    match outcomes {
        [outcome] => outcome.experiment.clone(),
        _ => format!("{} experiments", outcomes.len()),
    }
}

fn header(html: &mut String, outcomes: &[Outcome]) {
    let versions: BTreeSet<&str> = outcomes.iter().map(|outcome| outcome.version.as_str()).collect();
    let versions: Vec<&str> = versions.into_iter().filter(|version| !version.is_empty()).collect();
    add!(html, "<header>\n<h1>Papers’ experiments, run again</h1>");
    add!(
        html,
        "<p class=\"lead\">{} in the lab of moafs{}: the code that a mount runs, on modelled disks, in virtual time.</p>",
        counted(outcomes.len(), "experiment"),
        if versions.is_empty() { String::new() } else { format!(" {}", Escaped(&versions.join(", "))) },
    );
    if outcomes.is_empty() {
        add!(html, "<p>There is no result to show.</p>");
    } else {
        contents(html, outcomes);
    }
    add!(html, "</header>");
}

/// Writes the table of contents, with the gains in one line each.
fn contents(html: &mut String, outcomes: &[Outcome]) {
    let has_gains = outcomes.iter().any(|outcome| outcome.rows.iter().any(|row| row.metric == "gain"));
    add!(
        html,
        "<nav aria-label=\"Contents\">\n<h3>Contents</h3>\n<div class=\"scroll\"><table class=\"list\">\n<thead><tr>"
    );
    add!(html, "<th scope=\"col\">experiment</th><th scope=\"col\">question</th><th scope=\"col\">paper</th>");
    if has_gains {
        add!(html, "<th scope=\"col\">gain, ours</th><th scope=\"col\">gain, paper</th>");
    }
    add!(html, "</tr></thead>\n<tbody>");
    for outcome in outcomes {
        let id = Escaped(&outcome.experiment);
        add!(html, "<tr><th scope=\"row\"><a href=\"#{id}\"><code>{id}</code></a></th>");
        add!(html, "<td class=\"wrap\">{}</td><td>{}</td>", Escaped(&outcome.title), Escaped(&outcome.figure));
        if has_gains {
            let gains = || outcome.rows.iter().filter(|row| row.metric == "gain");
            let unit = gains().next().map_or("", |row| row.unit.as_str());
            add!(html, "<td>{}</td>", Escaped(&span(gains().map(|row| row.value), unit)));
            add!(html, "<td>{}</td>", Escaped(&span(gains().filter_map(|row| row.paper), unit)));
        }
        add!(html, "</tr>");
    }
    add!(html, "</tbody></table></div>\n</nav>");
}

/// Formats the range from the smallest to the largest value, as differences.
fn span(values: impl Iterator<Item = f64> + Clone, unit: &str) -> String {
    let decimals = Decimals::of(values.clone()).or_whole(values.clone());
    let Some((min, max)) = super::axis::range(values) else { return NONE.to_owned() };
    let (min, max) = (decimals.show_signed(min), decimals.show_signed(max));
    if min == max { format!("{min} {unit}") } else { format!("{min} to {max} {unit}") }
}

fn section(html: &mut String, outcome: &Outcome, pictures: &Pictures<'_>, looks: &Looks) {
    let id = Escaped(&outcome.experiment);
    let figure = if outcome.figure.is_empty() { String::new() } else { format!(" · {}", Escaped(&outcome.figure)) };
    add!(html, "<section id=\"{id}\" aria-labelledby=\"{id}-title\">");
    add!(html, "<p class=\"kicker\"><code>{id}</code>{figure}</p>");
    add!(html, "<h2 id=\"{id}-title\">{}</h2>", Escaped(&outcome.title));
    add!(
        html,
        "<p class=\"facts\">scale {} · {} · version {}{}<span class=\"files\"> · \
         <a href=\"{id}.csv\">CSV</a> · <a href=\"{id}.json\">JSON</a></span></p>",
        outcome.scale,
        seeds(outcome),
        Escaped(if outcome.version.is_empty() { NONE } else { &outcome.version }),
        if outcome.commit.is_empty() { String::new() } else { format!(" · commit {}", Escaped(&outcome.commit)) },
    );
    if !outcome.command.is_empty() {
        add!(html, "<p class=\"facts\"><code>{}</code></p>", Escaped(&outcome.command));
    }
    if let Some(caution) = outcome.caution() {
        add!(html, "<p><strong>{}</strong></p>", Escaped(&caution));
    }
    if !outcome.paper.is_empty() {
        add!(html, "<blockquote><p><strong>The paper.</strong> {}</p></blockquote>", Escaped(&outcome.paper));
    }
    tables(html, &comparisons(outcome), looks);
    charts(html, pictures);
    scatters(html, pictures, looks);
    maps(html, pictures);
    if !outcome.notes.is_empty() {
        add!(html, "<h3>Notes</h3>");
        outcome.notes.iter().for_each(|note| add!(html, "<p>{}</p>", Escaped(note)));
    }
    all_rows(html, outcome, looks);
    parameters(html, outcome);
    add!(html, "</section>");
}

/// Says which seeds an outcome is of.
pub(super) fn seeds(outcome: &Outcome) -> String {
    let Outcome { seed, seeds, .. } = outcome;
    match seeds {
        0 | 1 => format!("seed {seed}"),
        _ => format!("seeds {seed} to {}, means ± 95 % intervals", seed.wrapping_add(u64::from(*seeds) - 1)),
    }
}

fn tables(html: &mut String, comparisons: &[Comparison<'_>], looks: &Looks) {
    if comparisons.is_empty() {
        return;
    }
    add!(html, "<h3>Ours and the paper’s</h3>\n<div class=\"tables\">");
    comparisons.iter().for_each(|comparison| table(html, comparison, looks));
    add!(html, "</div>");
}

fn table(html: &mut String, comparison: &Comparison<'_>, looks: &Looks) {
    let unit = if comparison.unit.is_empty() { String::new() } else { format!(", {}", comparison.unit) };
    add!(html, "<div><div class=\"scroll\"><table>");
    add!(html, "<caption>{}<span>{}</span></caption>\n<thead>", Escaped(comparison.metric), Escaped(&unit));
    if let Some(along) = comparison.along {
        add!(html, "<tr><th scope=\"row\" colspan=\"2\">{}</th>", Escaped(&dimension_title(along)));
        for column in &comparison.columns {
            add!(html, "<th class=\"n\" scope=\"col\">{}</th>", Escaped(column));
        }
        add!(html, "</tr>");
    }
    add!(html, "</thead>");
    let decimals = Decimals::of(comparison.values()).or_whole(comparison.values());
    let shown = |value: f64| if comparison.is_gain() { decimals.show_signed(value) } else { decimals.show(value) };
    // A number of the paper is shown with the decimals that it has.
    let quoted = |value: f64| {
        let decimals = decimals.or_whole([value]);
        if comparison.is_gain() { decimals.show_signed(value) } else { decimals.show(value) }
    };
    for line in &comparison.lines {
        let has_paper = line.has_paper();
        add!(
            html,
            "<tbody><tr class=\"ours\"><th scope=\"rowgroup\" rowspan=\"{}\">{}</th><th scope=\"row\">ours</th>",
            1 + usize::from(has_paper),
            line_name(line, looks)
        );
        let ours = |row: &Row| match row.interval {
            Some(half) => format!("{} ± {}", shown(row.value), decimals.show(half)),
            None => shown(row.value),
        };
        cells(html, line.rows.iter().map(|row| row.map(ours)));
        add!(html, "</tr>");
        if has_paper {
            add!(html, "<tr class=\"paper\"><th scope=\"row\">paper</th>");
            cells(html, line.rows.iter().map(|row| row.and_then(|row| row.paper).map(quoted)));
            add!(html, "</tr>");
        }
        add!(html, "</tbody>");
    }
    add!(html, "</table></div>");
    if comparison.left_out > 0 {
        add!(html, "<p class=\"undrawn\">{} more are in the table of all numbers.</p>", comparison.left_out);
    }
    add!(html, "</div>");
}

fn line_name(line: &Line<'_>, looks: &Looks) -> String {
    let further: String = line.further.iter().map(|value| format!(" · {}", Escaped(value))).collect();
    format!("{}{further}", system_name(line.system, looks))
}

/// Writes a system's name with its colour.
fn system_name(system: &str, looks: &Looks) -> String {
    format!("<span class=\"dot b{}\"></span>{}", looks.of_system(system), Escaped(system))
}

fn cells(html: &mut String, values: impl Iterator<Item = Option<String>>) {
    for value in values {
        add!(html, "<td class=\"n\">{}</td>", Escaped(value.as_deref().unwrap_or("")));
    }
}

/// Writes a picture with its caption, which is HTML; or the reason why there is none.
fn figure(html: &mut String, caption: &str, drawn: Result<&Drawn, &Undrawn>) {
    match drawn {
        Ok(Drawn { stem, picture }) => {
            let stem = Escaped(stem);
            add!(
                html,
                "<figure><figcaption>{caption}<small><a href=\"pictures/{stem}.svg\">SVG</a> · \
                 <a href=\"pictures/{stem}.png\">PNG</a></small></figcaption>\n<div class=\"scroll\">{}</div></figure>",
                picture.inline(),
            );
        }
        Err(why) => {
            let why = Escaped(&why.to_string()).to_string();
            add!(
                html,
                "<figure><figcaption>{caption}</figcaption>\n<p class=\"undrawn\">Not drawn: {why}.</p></figure>"
            );
        }
    }
}

fn charts(html: &mut String, pictures: &Pictures<'_>) {
    if pictures.charts.is_empty() {
        return;
    }
    add!(html, "<h3>Results</h3>\n<div class=\"pictures charts\">");
    for (title, drawn) in &pictures.charts {
        figure(html, &Escaped(title).to_string(), drawn.as_ref());
    }
    add!(html, "</div>");
}

fn scatters(html: &mut String, pictures: &Pictures<'_>, looks: &Looks) {
    for (scatter, panels) in &pictures.scatters {
        add!(html, "<h3>{}</h3>\n<div class=\"pictures small\">", Escaped(&scatter.title));
        match panels {
            Ok(panels) => {
                for (system, drawn) in panels {
                    figure(html, &system_name(system, looks), Ok(drawn));
                }
            }
            Err(why) => add!(html, "<p class=\"undrawn\">Not drawn: {}.</p>", Escaped(&why.to_string())),
        }
        add!(html, "</div>");
    }
}

fn maps(html: &mut String, pictures: &Pictures<'_>) {
    if pictures.maps.is_empty() {
        return;
    }
    add!(html, "<h3>What lies where</h3>\n<div class=\"pictures\">");
    for (title, drawn) in &pictures.maps {
        figure(html, &Escaped(title).to_string(), drawn.as_ref());
    }
    add!(html, "</div>");
}

fn all_rows(html: &mut String, outcome: &Outcome, looks: &Looks) {
    if outcome.rows.is_empty() {
        return;
    }
    let dimensions: BTreeSet<&str> =
        outcome.rows.iter().flat_map(|row| row.dimensions.keys().map(String::as_str)).collect();
    add!(html, "<details><summary>All {}</summary><div><table class=\"list\">", counted(outcome.rows.len(), "number"));
    add!(html, "<thead><tr><th scope=\"col\">system</th>");
    for dimension in &dimensions {
        add!(html, "<th scope=\"col\">{}</th>", Escaped(&dimension_title(dimension)));
    }
    add!(
        html,
        "<th scope=\"col\">metric</th><th scope=\"col\" class=\"n\">ours</th><th scope=\"col\">unit</th>\
                <th scope=\"col\" class=\"n\">paper</th></tr></thead>\n<tbody>"
    );
    outcome.rows.iter().take(ROWS_MAX).for_each(|row| row_of_all(html, row, &dimensions, looks));
    add!(html, "</tbody></table>");
    if outcome.rows.len() > ROWS_MAX {
        let left_out = outcome.rows.len() - ROWS_MAX;
        add!(
            html,
            "<p class=\"undrawn\">{left_out} more are in <code>{}.csv</code>.</p>",
            Escaped(&outcome.experiment)
        );
    }
    add!(html, "</div></details>");
}

fn row_of_all(html: &mut String, row: &Row, dimensions: &BTreeSet<&str>, looks: &Looks) {
    let mut cells = format!("<tr><th scope=\"row\">{}</th>", system_name(&row.system, looks));
    for dimension in dimensions {
        let value = row.dimensions.get(*dimension).map_or("", String::as_str);
        let _ = write!(cells, "<td>{}</td>", Escaped(value));
    }
    let paper = row.paper.map(number::show).unwrap_or_default();
    let (metric, unit) = (Escaped(&row.metric), Escaped(&row.unit));
    add!(
        html,
        "{cells}<td>{metric}</td><td class=\"n\">{}</td><td>{unit}</td><td class=\"n\">{paper}</td></tr>",
        number::show(row.value)
    );
}

fn parameters(html: &mut String, outcome: &Outcome) {
    if outcome.parameters.is_empty() {
        return;
    }
    add!(
        html,
        "<details class=\"parameters\"><summary>{}</summary><div><dl>",
        counted(outcome.parameters.len(), "parameter")
    );
    for (name, value) in &outcome.parameters {
        add!(html, "<dt>{}</dt><dd>{}</dd>", Escaped(name), Escaped(value));
    }
    add!(html, "</dl></div></details>");
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
