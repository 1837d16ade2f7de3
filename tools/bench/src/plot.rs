//! Charts as SVG: lines on two logarithmic axes, or over time on two linear ones, with a legend.
//! One file, no scripts, no fonts of its own.

use std::fmt::Write;

/// A chart: x in bytes or pages (powers of two), y in microseconds or nanoseconds (powers of ten).
pub struct Chart {
    pub title: String,
    pub x: String,
    pub y: String,
    pub series: Vec<Series>,
}

/// What a bench draws.
pub trait Drawing {
    /// The drawing as a document.
    fn svg(&self) -> String;
}

/// Figures over time: both axes are linear and begin at 0.
pub struct Timeline {
    pub title: String,
    pub x: String,
    pub y: String,
    pub series: Vec<Series>,
    /// The largest y that is drawn at least.
    pub top: f64,
}

impl Drawing for Timeline {
    fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let x = Axis::from_zero(points().map(|point| point.0), 0.0, LEFT, WIDTH - LEFT - RIGHT);
        let y = Axis::from_zero(points().map(|point| point.1), self.top, HEIGHT - BOTTOM, -(HEIGHT - TOP - BOTTOM));
        draw(&self.title, (&self.x, &x), (&self.y, &y), &self.series, 1.5)
    }
}

impl Drawing for Chart {
    fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let x = Axis::over(points().map(|point| point.0), 2.0, LEFT, WIDTH - LEFT - RIGHT);
        let y = Axis::over(points().map(|point| point.1), 10.0, HEIGHT - BOTTOM, -(HEIGHT - TOP - BOTTOM));
        draw(&self.title, (&self.x, &x), (&self.y, &y), &self.series, 3.0)
    }
}

/// Bars in groups, on a linear axis from 0.
pub struct Bars {
    pub title: String,
    /// Names of the bars of a group.
    pub series: Vec<String>,
    /// Names of the groups, and the bars' values: as many as `series`.
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

impl Drawing for Bars {
    fn svg(&self) -> String {
        let values = || self.groups.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let y = Axis::from_zero(values(), 0.0, HEIGHT - BOTTOM, -(HEIGHT - TOP - BOTTOM));
        let x = Axis { base: 0.0, low: 0.0, high: 1.0, start: LEFT, length: WIDTH - LEFT - RIGHT };
        let named: Vec<Series> = self.series.iter().map(|name| Series::over_time(name, vec![(0.0, 0.0)])).collect();
        // The frame, the horizontal grid and the legend are those of the other drawings.
        let mut svg = draw(&self.title, ("", &Axis { high: 0.0, ..x }), ("", &y), &named, 0.0);
        svg.truncate(svg.trim_end().trim_end_matches("</svg>").len());
        let group = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let width = 0.8 * group / self.series.len().max(1) as f64;
        for (at, (name, values)) in self.groups.iter().enumerate() {
            let left = LEFT + group * (at as f64 + 0.1);
            for (nth, value) in values.iter().enumerate().filter_map(|(nth, value)| Some((nth, (*value)?))) {
                let (x, top) = (left + width * nth as f64, y.at(value));
                // Writing to a string cannot fail.
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}: \
                     {}</title></rect>",
                    HEIGHT - BOTTOM - top,
                    COLOURS[nth % COLOURS.len()],
                    escape(name),
                    orbit_console::out::figures(value)
                );
            }
            for (line, word) in name.split(' ').enumerate() {
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    left + 0.4 * group,
                    HEIGHT - BOTTOM + 18.0 + 14.0 * line as f64,
                    escape(word)
                );
            }
        }
        svg + "</svg>\n"
    }
}

/// A line of a chart.
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Series {
    /// Points in any order; those that no logarithm is of are left out.
    pub fn new(name: &str, mut points: Vec<(f64, f64)>) -> Series {
        points.retain(|&(x, y)| x > 0.0 && y > 0.0);
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: name.to_owned(), points }
    }

    /// Points of a [`Timeline`], in the order of time.
    pub fn over_time(name: &str, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.to_owned(), points }
    }
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Distinct also to readers who see red and green alike.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"];

/// An axis: from the exponent `low` to `high` of `base`, over `length` units from `start` on. Base
/// 0: from the value `low` to `high`.
struct Axis {
    base: f64,
    low: f64,
    high: f64,
    start: f64,
    length: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, base: f64, start: f64, length: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            low = low.min(value.log(base).floor());
            high = high.max(value.log(base).ceil());
        }
        if !low.is_finite() {
            (low, high) = (0.0, 1.0);
        }
        Axis { base, low, high: high.max(low + 1.0), start, length }
    }

    /// A linear axis from 0 to a round number that is no less than any value, nor than `top`.
    fn from_zero(values: impl Iterator<Item = f64>, top: f64, start: f64, length: f64) -> Axis {
        let most = values.fold(top, f64::max).max(1e-9);
        let unit = 10f64.powf(most.log10().floor());
        let high = [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0].map(|step| step * unit);
        let high = high.into_iter().find(|high| *high >= most * 0.999).unwrap_or(most);
        Axis { base: 0.0, low: 0.0, high, start, length }
    }

    fn at(&self, value: f64) -> f64 {
        if self.high <= self.low {
            return self.start;
        }
        let value = if self.base == 0.0 { value } else { value.log(self.base) };
        self.start + (value - self.low) / (self.high - self.low) * self.length
    }

    /// A value on the axis, in few letters.
    fn label(&self, value: f64) -> String {
        match self.base {
            0.0 => orbit_console::out::figures(value),
            2.0 => short(value, 1024.0),
            _ => short(value, 1000.0),
        }
    }

    /// Values for grid lines: no more than about a dozen.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let step = match self.base {
            0.0 => self.high / 10.0,
            _ => ((self.high - self.low) / 12.0).ceil().max(1.0),
        };
        // An axis without extent has no lines.
        let count = if self.high > self.low { ((self.high - self.low) / step).round() as usize + 1 } else { 0 };
        (0..count).map(move |nth| {
            let at = self.low + nth as f64 * step;
            if self.base == 0.0 { at } else { self.base.powf(at) }
        })
    }
}

/// Axes with their titles, lines with dots of this radius, the legend.
fn draw(title: &str, (x_title, x): (&str, &Axis), (y_title, y): (&str, &Axis), series: &[Series], dot: f64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let text = |svg: &mut String, x: f64, y: f64, more: &str, text: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {more}>{}</text>", escape(text));
    };
    let line = |svg: &mut String, from: (f64, f64), to: (f64, f64)| {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>");
    };
    text(&mut svg, LEFT, TOP - 20.0, "font-size=\"16\" font-weight=\"bold\"", title);
    for value in x.ticks() {
        line(&mut svg, (x.at(value), TOP), (x.at(value), HEIGHT - BOTTOM));
        text(&mut svg, x.at(value), HEIGHT - BOTTOM + 18.0, "text-anchor=\"middle\"", &x.label(value));
    }
    for value in y.ticks() {
        line(&mut svg, (LEFT, y.at(value)), (WIDTH - RIGHT, y.at(value)));
        text(&mut svg, LEFT - 8.0, y.at(value) + 4.0, "text-anchor=\"end\"", &y.label(value));
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    text(&mut svg, middle, HEIGHT - 16.0, "text-anchor=\"middle\"", x_title);
    let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 20 {:.1})\"", HEIGHT / 2.0);
    text(&mut svg, 20.0, HEIGHT / 2.0, &turned, y_title);
    let drawn = series.iter().filter(|series| !series.points.is_empty());
    for (nth, series) in drawn.enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let path: Vec<_> = series.points.iter().map(|&(px, py)| format!("{:.1},{:.1}", x.at(px), y.at(py))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for &(px, py) in &series.points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{dot}\" fill=\"{colour}\"><title>{}: {}</title></circle>",
                x.at(px),
                y.at(py),
                escape(&series.name),
                orbit_console::out::figures(py)
            );
        }
        let row = TOP + 16.0 + 20.0 * nth as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>",
            WIDTH - RIGHT + 16.0,
            row - 6.0
        );
        text(&mut svg, WIDTH - RIGHT + 36.0, row, "", &series.name);
    }
    svg.push_str("</svg>\n");
    svg
}

/// `64 Ki`, `1 Mi` for steps of 1024; `10`, `1 k`, `1 M` for steps of 1000; fractions as they are.
fn short(value: f64, step: f64) -> String {
    let units = if step == 1024.0 { ["", " Ki", " Mi", " Gi", " Ti"] } else { ["", " k", " M", " G", " T"] };
    let mut rest = value;
    let mut unit = 0;
    while rest >= step * 0.999 && unit + 1 < units.len() {
        rest /= step;
        unit += 1;
    }
    let digits = if rest < 0.999 { format!("{rest}") } else { format!("{rest:.0}") };
    format!("{digits}{}", units[unit])
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_name_round_numbers() {
        assert_eq!(short(65536.0, 1024.0), "64 Ki");
        assert_eq!(short(1048576.0, 1024.0), "1 Mi");
        assert_eq!(short(10_000.0, 1000.0), "10 k");
        assert_eq!(short(0.1, 1000.0), "0.1");
    }

    #[test]
    fn every_bar_is_drawn_and_named() {
        let bars = Bars {
            title: "a".to_owned(),
            series: vec!["here".to_owned(), "there".to_owned()],
            groups: vec![("t1 x".to_owned(), vec![Some(0.5), None]), ("t2 y".to_owned(), vec![Some(1.0), Some(0.9)])],
        };
        let svg = bars.svg();
        assert_eq!(svg.matches("<title>t1 x: ").count() + svg.matches("<title>t2 y: ").count(), 3);
        assert!(svg.contains(">t2</text>") && svg.contains(">there</text>") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!(svg.matches("</svg>").count(), 1);
    }

    #[test]
    fn every_point_is_drawn_and_text_is_escaped() {
        let chart = Chart {
            title: "a < b".to_owned(),
            x: String::new(),
            y: String::new(),
            series: vec![
                Series::new("one", vec![(4096.0, 1.0), (0.0, 1.0), (8192.0, 20.0)]),
                Series::new("none", vec![]),
            ],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<circle").count(), 2);
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    }
}
