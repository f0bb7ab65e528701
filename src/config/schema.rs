//! Every option there is, with its default. The names are the product's contract; see README and `config show`.
//!
//! Nothing is checked here but shapes; [`super::check`] turns a [`Config`] into values that are proof.

use serde::{Deserialize, Serialize};

macro_rules! sections {
    ($($(#[$doc:meta])* $section:ident { $($(#[$note:meta])* $field:ident: $kind:ty = $default:expr,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields, default)]
            pub struct $section { $($(#[$note])* pub $field: $kind,)* }

            impl Default for $section {
                fn default() -> Self { Self { $($field: $default,)* } }
            }
        )*
    };
}

sections! {
    /// All options.
    Config {
        /// Proxmox's cluster file system, or a tree like it.
        pve_dir: String = "/etc/pve".into(),
        /// This node's name; empty: the host name up to its first dot.
        node_name: String = String::new(),
        /// Which dialects a VM is shown: `auto` (all), `openstack`, `ec2`.
        emulate: String = "auto".into(),
        /// What is logged: `error`, `warn`, `info`, `debug`, `trace` or tracing's filter syntax.
        log_level: String = "info".into(),
        /// Old name of `management.listen`.
        metrics_addr: String = String::new(),
        /// See [`Cloudinit`].
        cloudinit: Cloudinit = Cloudinit::default(),
        /// See [`Management`].
        management: Management = Management::default(),
        /// See [`Guests`].
        guests: Guests = Guests::default(),
        /// See [`Http`].
        http: Http = Http::default(),
        /// See [`Datapath`].
        datapath: Datapath = Datapath::default(),
        /// See [`Nocloud`].
        nocloud: Nocloud = Nocloud::default(),
        /// See [`VendorData`].
        vendor_data: VendorData = VendorData::default(),
        /// See [`Secrets`].
        secrets: Secrets = Secrets::default(),
        /// See [`Pxe`].
        pxe: Pxe = Pxe::default(),
        /// See [`Identity`].
        identity: Identity = Identity::default(),
        /// See [`Jwtsvid`].
        jwtsvid: Jwtsvid = Jwtsvid::default(),
        /// See [`Jwks`].
        jwks: Jwks = Jwks::default(),
        /// See [`Otlp`].
        otlp: Otlp = Otlp::default(),
        /// See [`Log`].
        log: Log = Log::default(),
    }

    /// Proxmox's own cloud-init options.
    Cloudinit {
        /// Serve user data made from `ciuser`, `sshkeys` … to VMs without a block.
        enabled: bool = true,
    }

    /// The node's side: metrics and health.
    Management {
        /// Address and port; empty: none.
        listen: String = "127.0.0.1:9100".into(),
    }

    /// Which guests are served.
    Guests {
        /// See [`Exclude`].
        exclude: Exclude = Exclude::default(),
    }

    /// Guests that are neither guarded nor served.
    Exclude {
        /// By number.
        vmids: Vec<u32> = Vec::new(),
        /// By resource pool.
        pools: Vec<String> = Vec::new(),
        /// By tag.
        tags: Vec<String> = Vec::new(),
        /// By bridge.
        bridges: Vec<String> = Vec::new(),
    }

    /// What requests may look like.
    Http {
        /// Names besides our own that may stand in `Host`.
        allowed_hosts: Vec<String> = Vec::new(),
    }

    /// Interfaces, kernel programs and devices.
    Datapath {
        /// Directory on a BPF file system for the pinned links.
        pin_dir: String = "/run/pve-imds/bpf".into(),
        /// Our two devices are called this and `a`, `b`.
        device_prefix: String = "imds-".into(),
        /// Link kinds that may be a guest's interface.
        accept_kinds: Vec<String> = vec!["tun".into()],
    }

    /// `/nocloud/`.
    Nocloud {
        /// Serve it.
        enabled: bool = true,
    }

    /// Vendor data of the node's own.
    VendorData {
        /// Directory of files, each of which says whom it is for; empty: none.
        dir: String = "/etc/pve-imds/vendor-data.d".into(),
    }

    /// Templated user data.
    Secrets {
        /// Render `secrets=` blocks.
        enabled: bool = false,
        /// OpenBao or Vault, https.
        address: String = String::new(),
        /// `X-Vault-Namespace`.
        namespace: String = String::new(),
        /// CA certificates; empty: the system's.
        ca_file: String = String::new(),
        /// Read each time the store is asked.
        token_file: String = String::new(),
        /// API path below `/v1/`.
        path_template: String = "kv/data/pve-imds/pools/{pool}/{name}".into(),
        /// The tag that selects the scope.
        tag_prefix: String = "pve-imds-".into(),
        /// Trust registered tags only.
        require_registered_tags: bool = true,
        /// Render nothing while the node has no quorum.
        require_quorum: bool = true,
        /// How long a fetched set is used again.
        cache_ttl: String = "60s".into(),
    }

    /// Provisioning over iPXE.
    Pxe {
        /// Serve `/pxe`.
        enabled: bool = false,
        /// API path below `/v1/`.
        state_path_template: String = "kv/data/pve-imds/pxe/{uuid}".into(),
        /// https.
        manifest_url: String = String::new(),
        /// CA certificates; empty: the system's.
        manifest_ca_file: String = String::new(),
        /// How long a fetched manifest is used again.
        manifest_ttl: String = "60s".into(),
        /// The live OS.
        live_uki: String = "/var/lib/pve-imds/live.efi".into(),
        /// https, ending in `/`.
        chain_allowed_prefixes: Vec<String> = vec!["https://pxe.factory.talos.dev/pxe/".into()],
        /// See [`Images`].
        images: Images = Images::default(),
    }

    /// A private image bucket.
    Images {
        /// https, ending in `/`; empty: no signing.
        bucket_url: String = String::new(),
        /// SigV4 region.
        region: String = "default".into(),
        /// API path below `/v1/`.
        credentials_path: String = "kv/data/pve-imds/rgw-images".into(),
        /// Lifetime of presigned URLs.
        url_lifetime: String = "15m".into(),
    }

    /// Who is who.
    Identity {
        /// `UUID=VMID`: whose a UUID is that more than one VM has.
        uuid_owner: Vec<String> = Vec::new(),
    }

    /// Identity tokens.
    Jwtsvid {
        /// The node's RSA key; empty: `nodes/<node>/pve-ssl.key` below `pve_dir`.
        private_key_path: String = String::new(),
        /// Lifetime of a token.
        token_ttl: String = "5m".into(),
        /// The cluster's certificates; empty: `nodes` below `pve_dir`.
        nodes_dir: String = String::new(),
        /// SPIFFE trust domain; empty: the node's name.
        trust_domain: String = String::new(),
        /// `iss`; empty: none.
        issuer: String = String::new(),
        /// `sub`; empty: the VMID.
        subject_template: String = String::new(),
        /// Audiences a VM may ask for; empty: any.
        audiences: Vec<String> = Vec::new(),
    }

    /// The key set for those who verify.
    Jwks {
        /// Address and port; empty: none.
        listen: String = String::new(),
    }

    /// Traces.
    Otlp {
        /// Collector, `http://host:4318`; empty: none.
        endpoint: String = String::new(),
    }

    /// Logs.
    Log {
        /// `auto` (journald under systemd, else text), `journald`, `text`, `json`.
        format: String = "auto".into(),
    }
}
