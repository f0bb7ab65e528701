# From rounds to the table: awk -f table.awk rows.tsv raw.tsv
#
# raw.tsv has one measurement a line: row, round, side (ours or peer), value. A floor holds with 5 % of tolerance.
BEGIN { FS = "\t" }
FNR == NR && !/^#/ { key[++rows] = $1; what[$1] = $2; unit[$1] = $3; stat[$1] = $4; sense[$1] = $5; floor[$1] = $6; aim[$1] = $7 }
FNR == NR { next }
{ value[$1, $3, ++count[$1, $3]] = $4; if ($3 == "ours") ours[$1, $2] = $4; else if (($1, $2) in ours && $4 > 0) ratio[$1, ++ratios[$1]] = ours[$1, $2] / $4 }

function sorted(from, row, side, n, to,   i, j, t) {
    for (i = 1; i <= n; i++) {
        t = side == "" ? from[row, i] : from[row, side, i]
        for (j = i - 1; j > 0 && to[j] > t; j--) to[j + 1] = to[j]
        to[j + 1] = t
    }
}
# The nearest rank: a real measurement, never an invention between two.
function quantile(from, row, side, n, q,   to, rank) {
    if (n == 0) return ""
    sorted(from, row, side, n, to)
    rank = int(q * n); if (rank < q * n) rank++; if (rank < 1) rank = 1
    return to[rank]
}
function show(x) { return x == "" ? "-" : x >= 1000 ? sprintf("%.0f", x) : x == int(x) ? x + 0 : sprintf(x >= 100 ? "%.0f" : x >= 10 ? "%.1f" : "%.2f", x) }
function holds(x, sense, bound, tolerance) { return sense == ">=" ? x >= bound * (1 - tolerance) : x <= bound * (1 + tolerance) }

END {
    line = "%-62s %12s %9s %6s %7s %6s  %s\n"
    printf line, "what", "ours", "peer", "ratio", "floor", "aim", ""
    for (i = 1; i <= rows; i++) {
        k = key[i]; n = count[k, "ours"]
        if (!n) continue
        q = stat[k] == "max" ? 1 : stat[k] == "p99" ? 0.99 : 0.5
        mine = quantile(value, k, "ours", n, q)
        peer = quantile(value, k, "peer", count[k, "peer"], 0.5)
        r = quantile(ratio, k, "", ratios[k], 0.5)
        judged = stat[k] == "ratio" ? r : mine
        verdict = floor[k] == "-" && aim[k] == "-" ? "" : judged == "" ? "no ratio" : floor[k] != "-" && !holds(judged, sense[k], floor[k], 0.05) ? "NOT MET" : aim[k] == "-" || holds(judged, sense[k], aim[k], 0) ? "aim met" : floor[k] == "-" ? "aim missed" : "floor met"
        printf line, what[k], show(mine) " " (length(unit[k]) > 6 ? "" : unit[k]), show(peer), r == "" ? "-" : sprintf("%.2f", r), floor[k], aim[k], verdict
    }
}
