//! A network configuration, read as Talos reads it: what is wrong anywhere makes the whole document wrong.
//!
//! In comes the document's text; out come the cards it sets up, or what is wrong. Bonds and VLANs are not played.

use std::net::IpAddr;

use pve_imds_model::yaml;
use serde_json::Value;

/// A card: by its MAC in small letters, or by its name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub card: String,
    pub dhcp4: bool,
    /// With their prefixes.
    pub addresses: Vec<String>,
    pub gateways: Vec<IpAddr>,
    pub servers: Vec<IpAddr>,
}

type Wrong<T> = Result<T, String>;

/// The cards of a document of version 1 or 2, with or without `network:` above it.
pub fn understand(text: &[u8]) -> Wrong<Vec<Link>> {
    let document: Value = yaml::read(text).map_err(|error| error.to_string())?;
    let body = document.get("network").unwrap_or(&document);
    match body["version"].as_u64() {
        Some(1) => first(body),
        Some(2) => second(body),
        _ => Err("neither version 1 nor 2".to_owned()),
    }
}

fn second(body: &Value) -> Wrong<Vec<Link>> {
    let Some(ethernets) = body["ethernets"].as_object() else { return Ok(Vec::new()) };
    let link = |(name, ethernet): (&String, &Value)| {
        let mac = ethernet["match"]["macaddress"].as_str();
        let mut link = Link { card: mac.unwrap_or(name).to_ascii_lowercase(), ..Link::default() };
        for (key, value) in [("dhcp4", &mut link.dhcp4), ("dhcp6", &mut false)] {
            *value = ethernet
                .get(key)
                .map_or(Ok(false), |value| value.as_bool().ok_or_else(|| format!("{key}: {value}")))?;
        }
        for address in list(&ethernet["addresses"])? {
            link.addresses.push(with_prefix(&address)?);
        }
        for key in ["gateway4", "gateway6"] {
            if let Some(gateway) = ethernet.get(key) {
                link.gateways.push(address(gateway.as_str().unwrap_or_default())?);
            }
        }
        for route in ethernet["routes"].as_array().into_iter().flatten() {
            match route["to"].as_str() {
                Some("default") => {}
                to => _ = with_prefix(to.unwrap_or_default())?,
            }
            link.gateways.push(address(route["via"].as_str().unwrap_or_default())?);
        }
        for server in list(&ethernet["nameservers"]["addresses"])? {
            link.servers.push(address(&server)?);
        }
        Ok(link)
    };
    ethernets.iter().map(link).collect()
}

fn first(body: &Value) -> Wrong<Vec<Link>> {
    let mut links: Vec<Link> = Vec::new();
    let mut servers = Vec::new();
    for part in body["config"].as_array().into_iter().flatten() {
        match part["type"].as_str() {
            Some("nameserver") => {
                // A single one, which cloud-init would take, is not a list.
                let addresses = part["address"].as_array().ok_or("nameserver without a list")?;
                for server in addresses {
                    servers.push(address(server.as_str().unwrap_or_default())?);
                }
            }
            Some("physical") => links.push(physical(part)?),
            _ => {}
        }
    }
    for link in &mut links {
        link.servers.clone_from(&servers);
    }
    Ok(links)
}

fn physical(part: &Value) -> Wrong<Link> {
    let card = part["mac_address"].as_str().or_else(|| part["name"].as_str()).unwrap_or_default().to_ascii_lowercase();
    let mut link = Link { card, ..Link::default() };
    for subnet in part["subnets"].as_array().into_iter().flatten() {
        let text = |key: &str| subnet[key].as_str().unwrap_or_default();
        match text("type") {
            "dhcp" | "dhcp4" => link.dhcp4 = true,
            "static" | "static6" => {
                link.addresses.push(match with_prefix(text("address")) {
                    Ok(whole) => whole,
                    Err(_) => format!("{}/{}", address(text("address"))?, ones(&address(text("netmask"))?)),
                });
                if subnet.get("gateway").is_some() {
                    link.gateways.push(address(text("gateway"))?);
                }
            }
            _ => {}
        }
    }
    Ok(link)
}

/// A list of texts, or none at all.
fn list(value: &Value) -> Wrong<Vec<String>> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| format!("no text: {item}")))
            .collect(),
        other => Err(format!("no list: {other}")),
    }
}

fn address(text: &str) -> Wrong<IpAddr> {
    text.parse().map_err(|_| format!("no address: {text:?}"))
}

fn with_prefix(text: &str) -> Wrong<String> {
    let (network, prefix) = text.split_once('/').ok_or_else(|| format!("no prefix: {text:?}"))?;
    let most = if address(network)?.is_ipv4() { 32 } else { 128 };
    match prefix.parse::<u8>() {
        Ok(prefix) if prefix <= most => Ok(text.to_owned()),
        _ => Err(format!("no prefix: {text:?}")),
    }
}

/// The length of the prefix that a netmask stands for.
fn ones(mask: &IpAddr) -> u32 {
    match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    }
}

#[test]
fn talos_takes_no_document_with_anything_wrong_in_it() {
    for (text, works) in [
        ("version: 2\nethernets: {}", true),
        ("network: {version: 1, config: []}", true),
        ("version: 2\nethernets: {eth0: {dhcp4: true}}", true),
        ("", false),
        ("version: 3", false),
        ("ethernets: {}", false),
        ("network: {version: 3}\nversion: 2", false),
        ("version: 2\nethernets: {eth0: {dhcp4: \"yes\"}}", false),
        ("version: 2\nethernets: {eth0: {addresses: [192.0.2.1]}}", false),
        ("version: 2\nethernets: {eth0: {addresses: [192.0.2.1/33]}}", false),
        ("version: 2\nethernets: {eth0: {addresses: 192.0.2.1/24}}", false),
        ("version: 2\nethernets: {eth0: {routes: [{to: default, via: 192.0.2.1}]}}", true),
        ("version: 2\nethernets: {eth0: {routes: [{to: default}]}}", false),
        ("version: 2\nethernets: {eth0: {nameservers: {addresses: [dns.example]}}}", false),
        ("version: 1\nconfig: [{type: nameserver, address: 192.0.2.1}]", false),
        ("version: 1\nconfig: [{type: nameserver, address: [192.0.2.1]}]", true),
        ("version: 1\nconfig: [{type: physical, name: eth0, subnets: [{type: static, address: x}]}]", false),
    ] {
        assert_eq!(understand(text.as_bytes()).is_ok(), works, "{text}");
    }
}
