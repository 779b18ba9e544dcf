//! A picture: a small writer of SVG elements, in the picture's units (a unit is a CSS pixel at full size).
//!
//! Invariants: well-formed XML whatever the texts are; no colour but by class (see `style`); numbers have at most one
//! decimal, which keeps files small and the same everywhere.

use std::fmt::{self, Write as _};

use super::font;
use super::style::{self, Ground};

/// Font size of labels.
pub(super) const LABEL: f64 = 13.0;
/// Font size of a file's title, the height it takes, and the height of the line below the picture.
const TITLE: f64 = 15.0;
const TITLE_HEIGHT: f64 = 36.0;
const SOURCE: f64 = 10.0;
const SOURCE_HEIGHT: f64 = 20.0;
/// Margin around a file's picture.
const MARGIN: f64 = 10.0;

/// The point of a text that its position names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    /// The position is the text's left end.
    Start,
    /// The position is the text's middle.
    Middle,
    /// The position is the text's right end.
    End,
}

/// The shape of a point, so that systems differ without colour.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marker(pub(super) usize);

/// A picture under construction.
#[derive(Debug)]
pub(super) struct Picture {
    /// Caption of the picture.
    pub(super) title: String,
    /// Description in words, for readers who cannot see the picture.
    pub(super) described: String,
    pub(super) width: f64,
    pub(super) height: f64,
    body: String,
}

impl Picture {
    pub(super) fn new(title: &str, width: f64, height: f64) -> Picture {
        Picture { title: title.to_owned(), described: String::new(), width, height, body: String::new() }
    }

    /// Appends an element. Writing to a String cannot fail.
    fn element(&mut self, element: fmt::Arguments<'_>) {
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = ((Num(from.0), Num(from.1)), (Num(to.0), Num(to.1)));
        self.element(format_args!(r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{class}"/>"#));
    }

    /// Adds a path with further attributes, such as `stroke-width="2"`.
    pub(super) fn path(&mut self, path: &Path, class: &str, attributes: &str) {
        if !path.0.is_empty() {
            self.element(format_args!(r#"<path d="{}" class="{class}" {attributes}/>"#, path.0));
        }
    }

    /// Adds a rectangle; `told` shows when a pointer rests on it.
    pub(super) fn rect(&mut self, corner: (f64, f64), size: (f64, f64), class: &str, told: &str) {
        let (x, y, width, height) = (Num(corner.0), Num(corner.1), Num(size.0), Num(size.1));
        let told = Told(told);
        self.element(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" class="{class}">{told}</rect>"#
        ));
    }

    /// Adds a point of radius `r`; `told` shows when a pointer rests on it.
    pub(super) fn marker(&mut self, (x, y): (f64, f64), r: f64, marker: Marker, class: &str, told: &str) {
        let told = Told(told);
        let (left, right, top, bottom) = (Num(x - r), Num(x + r), Num(y - r), Num(y + r));
        let (cx, cy) = (Num(x), Num(y));
        match marker.0 % 5 {
            0 => self.element(format_args!(r#"<circle cx="{cx}" cy="{cy}" r="{r}" class="{class}">{told}</circle>"#)),
            1 => {
                // As large as the circle looks.
                let half = r * 0.88;
                let (x, y, side) = (Num(x - half), Num(y - half), Num(2.0 * half));
                self.element(format_args!(
                    r#"<rect x="{x}" y="{y}" width="{side}" height="{side}" class="{class}">{told}</rect>"#
                ));
            }
            shape => {
                let d = match shape {
                    2 => format!("M{left} {bottom}L{cx} {top}L{right} {bottom}Z"),
                    3 => format!("M{left} {cy}L{cx} {top}L{right} {cy}L{cx} {bottom}Z"),
                    _ => format!("M{left} {top}L{right} {top}L{cx} {bottom}Z"),
                };
                self.element(format_args!(r#"<path d="{d}" class="{class}">{told}</path>"#));
            }
        }
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, size: f64, text: &str) {
        let (x, y, text) = (Num(x), Num(y), Escaped(text));
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        self.element(format_args!(r#"<text x="{x}" y="{y}" class="{class}" font-size="{size}"{anchor}>{text}</text>"#));
    }

    /// Adds a text that ends at a point and rises towards it.
    pub(super) fn slanted(&mut self, (x, y): (f64, f64), class: &str, size: f64, text: &str) {
        let (x, y, text) = (Num(x), Num(y), Escaped(text));
        self.element(format_args!(
            r#"<text x="{x}" y="{y}" class="{class}" font-size="{size}" text-anchor="end" transform="rotate(-32 {x} {y})">{text}</text>"#
        ));
    }

    /// Returns the picture inside an HTML page, which has the rules and the caption.
    pub(super) fn inline(&self) -> String {
        let (width, height) = (Num(self.width), Num(self.height));
        let described = Escaped(&self.described);
        format!(
            "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
             aria-label=\"{described}\">\n{}</svg>\n",
            self.body
        )
    }

    /// Returns the picture as a file of its own: with its caption, `source` below it, and the rules
    /// of both grounds.
    pub(super) fn file(&self, source: &str) -> String {
        let size = (self.width + 2.0 * MARGIN, self.height + TITLE_HEIGHT + SOURCE_HEIGHT + 2.0 * MARGIN);
        let (width, height) = (Num(size.0), Num(size.1));
        let title = font::cut(&self.title, TITLE, self.width);
        let source = font::cut(source, SOURCE, self.width);
        let (light, dark) = (style::rules(Ground::Light), style::rules(Ground::Dark));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n\
             <style>\n{light}@media (prefers-color-scheme:dark){{\n{dark}}}\n</style>\n\
             <rect width=\"{width}\" height=\"{height}\" class=\"sheet\"/>\n\
             <text x=\"{MARGIN}\" y=\"{}\" class=\"ink bold\" font-size=\"{TITLE}\">{}</text>\n\
             <g transform=\"translate({MARGIN} {})\">\n{}</g>\n\
             <text x=\"{MARGIN}\" y=\"{}\" class=\"soft\" font-size=\"{SOURCE}\">{}</text>\n</svg>\n",
            Escaped(&self.title),
            Escaped(&self.described),
            Num(MARGIN + TITLE + 2.0),
            Escaped(&title),
            Num(MARGIN + TITLE_HEIGHT),
            self.body,
            Num(size.1 - MARGIN),
            Escaped(&source),
        )
    }
}

/// The data of a path element.
#[derive(Debug, Default)]
pub(super) struct Path(String);

impl Path {
    pub(super) fn move_to(&mut self, (x, y): (f64, f64)) {
        let _ = write!(self.0, "M{} {}", Num(x), Num(y));
    }

    pub(super) fn line_to(&mut self, (x, y): (f64, f64)) {
        let _ = write!(self.0, "L{} {}", Num(x), Num(y));
    }

    /// Adds a stroke to the right.
    pub(super) fn right(&mut self, by: f64) {
        let _ = write!(self.0, "h{}", Num(by));
    }
}

/// A number with at most one decimal.
struct Num(f64);

impl fmt::Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Adding zero makes a negative zero positive.
        let tenths = (self.0 * 10.0).round() + 0.0;
        if tenths % 10.0 == 0.0 { write!(f, "{}", tenths / 10.0) } else { write!(f, "{:.1}", tenths / 10.0) }
    }
}

/// Text as XML and HTML can hold it, in elements and in quoted attributes. Characters that no XML
/// document may contain become U+FFFD.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\t' | '\n' | '\r' => f.write_char(' ')?,
                '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// The text that shows when a pointer rests on an element.
struct Told<'a>(&'a str);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "<title>{}</title>", Escaped(self.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, text) in
            [(1.0, "1"), (1.04, "1"), (-0.04, "0"), (2.56, "2.6"), (-3.5, "-3.5"), (1e15, "1000000000000000")]
        {
            assert_eq!(Num(number).to_string(), text);
        }
    }

    #[test]
    fn any_text_gives_well_formed_xml() {
        let nasty = "</text><script>alert(\"1\")</script>&\u{0}\u{1b}[1m'\u{ffff}]]> 디";
        let mut picture = Picture::new(nasty, 100.0, 50.0);
        picture.described = nasty.to_owned();
        picture.text((1.0, 2.0), Anchor::End, "ink", LABEL, nasty);
        picture.slanted((1.0, 2.0), "ink", LABEL, nasty);
        picture.rect((0.0, 0.0), (1.0, 1.0), "f0", nasty);
        for marker in 0..5 {
            picture.marker((5.0, 5.0), 4.0, Marker(marker), "f0", nasty);
        }
        for text in [picture.file(nasty), picture.inline()] {
            let document = roxmltree::Document::parse(&text).unwrap();
            assert!(document.descendants().all(|node| node.tag_name().name() != "script"));
            let shown: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
            assert!(shown.iter().any(|text| text.contains("</text><script>")), "{shown:?}");
        }
    }
}
