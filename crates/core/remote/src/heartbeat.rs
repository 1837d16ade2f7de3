//! A module that says which nodes are heard.

use orbit_rmk::wire::{decode, encode};
use orbit_rmk::{Context, Event, Filter, Kind, Module, ModuleOptions};

/// Reports when a node is lost, and when it is back.
pub struct Heartbeat {
    nodes: Vec<String>,
    /// Subscriptions, and the node of each.
    of: Vec<(u64, String)>,
}

impl Heartbeat {
    /// Watches the links to these nodes.
    pub fn options(nodes: &[String]) -> ModuleOptions {
        ModuleOptions { settings: encode(&nodes), ..ModuleOptions::default() }
    }
}

impl Module for Heartbeat {
    const NAME: &'static str = "heartbeat";
    const PINS: &'static [&'static str] = &[];

    fn create(settings: &[u8]) -> Heartbeat {
        Heartbeat { nodes: decode(settings).unwrap_or_default(), of: Vec::new() }
    }

    fn start(&mut self, context: &mut Context) {
        for node in &self.nodes {
            let pin = format!("P_LINK@{node}");
            context.use_pin(&pin);
            for kind in [Kind::LinkLost, Kind::LinkBack] {
                let subscription = context.subscr_event(&pin, kind, Filter::everyone());
                self.of.push((subscription, node.clone()));
            }
        }
    }

    fn event(&mut self, context: &mut Context, event: &Event) {
        let Some((_, node)) = self.of.iter().find(|(subscription, _)| *subscription == event.subscription) else {
            return;
        };
        match event.kind() {
            Some(Kind::LinkLost) => {
                context.report(format!("node {node} is lost: what its pins would say is not known"))
            }
            Some(Kind::LinkBack) => {
                context.report(format!("node {node} is back after {:.1} s", event.values[0] as f64 / 1e9));
            }
            _ => {}
        }
    }
}
