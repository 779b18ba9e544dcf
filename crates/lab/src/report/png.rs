//! Pictures as PNG: the SVG files, rendered by resvg on a light ground with the built-in typeface.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, fontdb};

use super::font;

/// Pixels per unit of the picture: sharp on dense screens and at 300 dots per inch on half a page.
const SCALE: f32 = 2.0;

static FONTS: LazyLock<Arc<fontdb::Database>> = LazyLock::new(|| {
    let mut fonts = fontdb::Database::new();
    font::FACES.iter().for_each(|face| fonts.load_font_data(face.to_vec()));
    fonts.set_sans_serif_family(font::FAMILY);
    Arc::new(fonts)
});

/// Renders an SVG file.
pub(super) fn render(svg: &str) -> Result<Vec<u8>, String> {
    let options = usvg::Options { fontdb: FONTS.clone(), font_family: font::FAMILY.to_owned(), ..Default::default() };
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or("no size")?;
    let mut pixels = Pixmap::new(size.width(), size.height()).ok_or("no memory")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::svg::{Anchor, Picture};
    use super::*;

    #[test]
    fn text_is_drawn_on_a_light_ground_without_fonts_of_the_machine() {
        let mut picture = Picture::new("", 60.0, 40.0);
        let blank = Pixmap::decode_png(&render(&picture.file("")).unwrap()).unwrap();
        assert!(blank.pixels().iter().all(|pixel| pixel.red() == 255 && pixel.alpha() == 255));
        picture.text((5.0, 30.0), Anchor::Start, "ink", 20.0, "MMM");
        let written = Pixmap::decode_png(&render(&picture.file("")).unwrap()).unwrap();
        let dark = written.pixels().iter().filter(|pixel| pixel.red() < 100).count();
        assert!(dark > 200, "{dark} dark pixels");
    }

    #[test]
    fn what_is_no_picture_is_an_error() {
        assert!(render("<svg").is_err());
    }
}
