//! The typeface of pictures: two cuts of Inter (SIL Open Font License 1.1, `fonts/OFL.txt`), part
//! of the program, so that PNGs come out the same on a machine without fonts, and so that widths of
//! labels are known when they are placed.
//!
//! A browser may show an SVG with another typeface; layouts leave [`SLACK`] for that.

use std::sync::LazyLock;

use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider as _};

/// The typeface's cuts: regular and semi-bold.
pub(super) const FACES: [&[u8]; 2] =
    [include_bytes!("fonts/Inter-Regular-subset.otf"), include_bytes!("fonts/Inter-SemiBold-subset.otf")];
/// Name of the typeface's family.
pub(super) const FAMILY: &str = "Inter";
/// Factor by which other typefaces may be wider.
const SLACK: f64 = 1.04;
/// Width of a character that the typeface lacks, in parts of the font size: that of East Asian characters.
const MISSING: f64 = 1.0;

/// Advance widths of the characters below 256, in parts of the font size.
static WIDTHS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let Ok(face) = FontRef::new(FACES[0]) else { return Vec::new() };
    let metrics = face.glyph_metrics(Size::new(1000.0), LocationRef::default());
    let charmap = face.charmap();
    let width = |code: u32| charmap.map(code).and_then(|glyph| metrics.advance_width(glyph));
    (0..256).map(|code| width(code).map_or(MISSING, |width| f64::from(width) / 1000.0)).collect()
});

/// Returns the width of `text` at `size`.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let of = |letter: char| match letter {
        '\u{2010}'..='\u{2026}' | '\u{2212}' => 0.65,
        _ => WIDTHS.get(letter as usize).copied().unwrap_or(MISSING),
    };
    text.chars().map(of).sum::<f64>() * size * SLACK
}

/// Returns `text`, cut at the end with an ellipsis where it is wider than `width_max`.
pub(super) fn cut(text: &str, size: f64, width_max: f64) -> String {
    if width(text, size) <= width_max {
        return text.to_owned();
    }
    let mut cut = String::new();
    let room = width_max - width("…", size);
    let mut used = 0.0;
    for letter in text.chars() {
        used += width(letter.encode_utf8(&mut [0; 4]), size);
        if used > room {
            break;
        }
        cut.push(letter);
    }
    cut.truncate(cut.trim_end().len());
    cut + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_come_from_the_typeface() {
        assert!((width("i", 100.0) - 24.0).abs() < 6.0, "{}", width("i", 100.0));
        assert!(width("MMMM", 10.0) > 2.0 * width("iiii", 10.0));
        assert_eq!(width("", 10.0), 0.0);
    }

    #[test]
    fn long_text_is_cut_to_its_room_at_a_character() {
        for text in ["bandwidth in a very long sentence", "디렉토리 지역성을 활용한 쓰기", "short"] {
            let cut = cut(text, 12.0, 80.0);
            assert!(width(&cut, 12.0) <= 80.0);
            assert!(cut == text || cut.ends_with('…'));
        }
    }
}
