//! The report as a whole: the same bytes for the same outcomes, valid pages and pictures whatever
//! the outcomes hold, and kept results that give the same report again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use moafs_lab::outcome::{Cell, Chart, ChartForm, LayoutMap, Outcome, Row, Scatter};
use moafs_lab::report;

mod sample;

const NASTY: &str = "</style></svg><script>alert('1')</script>\"&\u{0}\u{1b}\u{202e} 디렉토리 \u{ffff}";

fn text(files: &BTreeMap<PathBuf, Vec<u8>>, name: &str) -> String {
    String::from_utf8(files[Path::new(name)].clone()).unwrap()
}

/// Checks that the page and all SVGs are well-formed and that nothing came from outside our own elements.
fn check(files: &BTreeMap<PathBuf, Vec<u8>>) {
    for (name, bytes) in files {
        let text = match name.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => String::from_utf8(bytes.clone()).unwrap(),
            // HTML as we write it is XML, but for the document type and two kinds of elements without an end.
            Some("html") => as_xml(&String::from_utf8(bytes.clone()).unwrap()),
            Some("png") => {
                assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
                continue;
            }
            _ => continue,
        };
        let document = roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", name.display()));
        let elements: Vec<&str> = document.descendants().map(|node| node.tag_name().name()).collect();
        assert!(!elements.contains(&"script"), "{}", name.display());
        let numbers = document.descendants().flat_map(|node| node.attributes()).filter(|it| it.name() != "aria-label");
        for attribute in
            numbers.filter(|it| matches!(it.name(), "x" | "y" | "d" | "cx" | "cy" | "width" | "height" | "viewBox"))
        {
            assert!(!attribute.value().contains("NaN") && !attribute.value().contains("inf"), "{attribute:?}");
        }
        for link in document.descendants().filter_map(|node| node.attribute("href").or(node.attribute("src"))) {
            assert!(!link.contains(':') && !link.starts_with('/'), "{link} leads out of the report");
        }
    }
}

fn as_xml(html: &str) -> String {
    let body = html.strip_prefix("<!DOCTYPE html>\n").unwrap();
    body.lines()
        .map(|line| if line.starts_with("<meta ") { line.replace('>', "/>") } else { line.to_owned() })
        .collect::<Vec<_>>()
        .join("\n")
        // The style sheet is no XML text: child selectors have a >, which XML allows.
        .replace("<!--", "")
}

/// Makes an outcome with every text nasty and every number unusual.
fn hostile() -> Outcome {
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, -0.0, 1e-320, 7.0];
    let name = NASTY.to_owned();
    let rows = values.iter().enumerate().map(|(at, &value)| Row {
        system: format!("{NASTY}{}", at % 3),
        dimensions: BTreeMap::from([(name.clone(), format!("{NASTY}{at}"))]),
        metric: if at % 2 == 0 { name.clone() } else { "gain".to_owned() },
        value,
        unit: name.clone(),
        paper: Some(-value),
        interval: Some(value),
    });
    let chart = |form, metric: &str| Chart {
        title: name.clone(),
        form,
        metric: metric.to_owned(),
        only: BTreeMap::new(),
        along: name.clone(),
    };
    let points: Vec<(f64, f64)> = values.iter().flat_map(|&x| values.iter().map(move |&y| (x, y))).collect();
    Outcome {
        experiment: "hostile".to_owned(),
        title: name.clone(),
        figure: name.clone(),
        paper: name.clone(),
        notes: vec![name.clone(); 2],
        scale: f64::NAN,
        seed: u64::MAX,
        seeds: 3,
        commit: name.clone(),
        command: name.clone(),
        version: name.clone(),
        parameters: BTreeMap::from([(name.clone(), name.clone())]),
        rows: rows.collect(),
        charts: [ChartForm::Bars, ChartForm::Lines]
            .into_iter()
            .flat_map(|form| [chart(form, NASTY), chart(form, "gain"), chart(form, "none")])
            .collect(),
        scatters: vec![
            Scatter {
                title: name.clone(),
                axes: (name.clone(), name.clone()),
                points: BTreeMap::from([(name.clone(), points)]),
            },
            Scatter { title: String::new(), axes: Default::default(), points: BTreeMap::new() },
        ],
        maps: vec![
            LayoutMap { title: name.clone(), columns: 3, cells: vec![Cell::Small; 7] },
            LayoutMap { title: name.clone(), columns: 0, cells: vec![Cell::Small; 7] },
        ],
    }
}

#[test]
fn the_same_outcomes_give_the_same_bytes() {
    let files = report::files(&sample::outcomes()).unwrap();
    assert!(files == report::files(&sample::outcomes()).unwrap());
    check(&files);
    let pictures = files.keys().filter(|name| name.starts_with("pictures")).count();
    assert_eq!(pictures, 2 * (4 + 3 + 3 + 2));
    let bytes: usize = files[Path::new("report.html")].len();
    assert!(bytes < 600_000, "the page has {bytes} bytes");
}

#[test]
fn whatever_an_outcome_holds_the_report_is_well_formed() {
    let files = report::files(&[hostile()]).unwrap();
    check(&files);
    let page = text(&files, "report.html");
    assert!(page.contains("Not drawn: ") && page.contains("&lt;script&gt;alert(&#39;1&#39;)"));
}

#[test]
fn no_outcome_and_an_empty_one_have_a_report_too() {
    let files = report::files(&[]).unwrap();
    check(&files);
    assert!(text(&files, "report.html").contains("There is no result"));
    let empty = Outcome { experiment: "empty".to_owned(), ..Outcome::default() };
    check(&report::files(&[empty]).unwrap());
}

#[test]
fn a_kept_result_gives_the_same_report_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut outcomes = sample::outcomes();
    outcomes.sort_by(|a, b| a.experiment.cmp(&b.experiment));
    report::write_dir(&outcomes, dir.path()).unwrap();
    let kept = report::read_dir(dir.path()).unwrap();
    assert_eq!(kept, outcomes);
    assert!(report::files(&kept).unwrap() == report::files(&outcomes).unwrap());
}

#[test]
fn numbers_that_json_lacks_come_back_as_gaps() {
    let dir = tempfile::tempdir().unwrap();
    report::write_dir(&[Outcome { scale: 1.0, ..hostile() }], dir.path()).unwrap();
    let kept = report::read(&dir.path().join("hostile.json")).unwrap();
    assert!(kept.rows[0].value.is_nan() && kept.rows[1].value.is_nan());
    assert_eq!(kept.rows[3].value, f64::MAX);
    check(&report::files(&[kept]).unwrap());
}

#[test]
fn huge_outcomes_give_a_report_of_bearable_size() {
    let row = |at: u32| Row {
        system: format!("s{}", at % 7),
        dimensions: BTreeMap::from([("run".to_owned(), at.to_string())]),
        metric: "elapsed".to_owned(),
        value: f64::from(at),
        unit: "s".to_owned(),
        paper: None,
        interval: None,
    };
    let chart = |form| Chart {
        title: "all".to_owned(),
        form,
        metric: "elapsed".to_owned(),
        only: BTreeMap::new(),
        along: "run".to_owned(),
    };
    let outcome = Outcome {
        experiment: "huge".to_owned(),
        rows: (0..100_000).map(row).collect(),
        charts: vec![chart(ChartForm::Bars), chart(ChartForm::Lines)],
        maps: vec![LayoutMap { title: "all".to_owned(), columns: 1, cells: vec![Cell::Free; 1 << 20] }],
        ..Outcome::default()
    };
    let files = report::files(&[outcome]).unwrap();
    let page = text(&files, "report.html");
    assert_eq!(page.matches("Not drawn: ").count(), 3);
    assert!(page.contains("98000 more are in <code>huge.csv</code>"));
    assert_eq!(text(&files, "huge.csv").lines().count(), 100_001);
}

#[test]
fn csv_and_json_have_the_same_names() {
    let outcome = sample::postmark();
    let json = serde_json::to_value(report::json(&outcome)).unwrap();
    let fields: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let all = ["command", "commit", "experiment", "parameters", "rows", "scale", "seed", "seeds", "version"];
    assert_eq!(fields, all);
    let csv = report::csv(&outcome);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let names = reader.headers().unwrap().clone();
    let rows = json["rows"].as_array().unwrap();
    let mut records = 0;
    for (record, row) in reader.records().map(Result::unwrap).zip(rows) {
        for (name, cell) in names.iter().zip(&record) {
            match &row[name] {
                serde_json::Value::Null => assert_eq!(cell, ""),
                serde_json::Value::String(text) => assert_eq!(cell, text),
                number => assert_eq!(cell.parse().ok(), number.as_f64()),
            }
        }
        records += 1;
    }
    assert_eq!(records, outcome.rows.len());
}

#[test]
fn dimensions_do_not_shadow_the_columns_of_rows() {
    let mut outcome = sample::head();
    outcome.rows[0].dimensions.insert("value".to_owned(), "1".to_owned());
    let error = report::files(&[outcome]).unwrap_err().to_string();
    assert!(error.contains("saf-head") && error.contains("value"), "{error}");
}
