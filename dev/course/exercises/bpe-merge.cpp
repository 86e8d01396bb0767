// ----- task
// One step of learning a vocabulary by byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909,
// section 3.2). Find the pair of neighbouring tokens that occurs most often; among equals the one
// with the smallest first token, then the smallest second. Replace its occurrences, from left to
// right and without overlap, by the token `id`. Every pair of neighbours counts, also where they
// overlap: a a a has two pairs a a, and becomes id a.
//
// Returns the tokens afterwards. A text of fewer than two tokens stays as it is.
Tokens bpe_merge(const Tokens& tokens, int id) {
    // your code
    return tokens;
}

// ----- solution
Tokens bpe_merge(const Tokens& tokens, int id) {
    std::map<std::pair<int, int>, int64_t> counts;
    for (size_t i = 0; i + 1 < tokens.size(); i++) counts[{tokens[i], tokens[i + 1]}]++;
    std::pair<int, int> best;
    int64_t most = 0;
    for (const auto& [pair, count] : counts)  // in ascending order of pairs
        if (count > most) best = pair, most = count;
    Tokens merged;
    for (size_t i = 0; i < tokens.size(); i++) {
        const bool here = i + 1 < tokens.size() && best == std::pair(tokens[i], tokens[i + 1]);
        merged.push_back(here ? id : tokens[i]);
        if (here) i++;
    }
    return merged;
}

// ----- mistakes
//     ties: count > most ==> count >= most
//     overlap: if (here) i++; ==>
//              if (here && i + 2 < tokens.size() && best == std::pair(tokens[i + 1], tokens[i + 2])) {} else if
//         (here) i++;
//     first-only: if (here) i++; ==> if (here) i++, most = 0; ;; const bool here = ==> const bool here = most > 0
//         &&
//     last: i + 1 < tokens.size() && best ==> i + 2 < tokens.size() && best
//     skip: if (here) i++; ==>
//     token: merged.push_back(here ? id : tokens[i]) ==>
//            merged.push_back(here ? id : tokens[i]); if (here) merged.push_back(tokens[i + 1])

// ----- judge
static Tokens merged_with(const Tokens& t, int id, const Key& wrong) {
    std::vector<std::array<int64_t, 3>> ranking;  // minus the count, then the pair
    for (size_t i = 0; i + 1 < t.size(); i++) {
        std::array<int64_t, 3> entry = {0, t[i], t[i + 1]};
        for (size_t k = 0; k + 1 < t.size(); k++) entry[0] -= t[k] == t[i] && t[k + 1] == t[i + 1];
        ranking.push_back(entry);
    }
    if (ranking.empty()) return t;
    std::array<int64_t, 3> best = *std::min_element(ranking.begin(), ranking.end());
    if (wrong == "ties")
        for (const auto& entry : ranking)
            if (entry[0] == best[0]) best = std::max(best, entry);
    if (wrong == "first-pair")
        for (size_t i = ranking.size(); i-- > 0;)
            if (ranking[i][0] == best[0]) best = ranking[i];
    Tokens merged;
    bool done = false;
    for (size_t i = 0; i < t.size(); i++) {
        bool here = i + 1 < t.size() - (wrong == "last") && t[i] == best[1] && t[i + 1] == best[2];
        if (wrong == "first-only") here = here && !done;
        done |= here;
        merged.push_back(here ? id : t[i]);
        if (here && wrong == "token") merged.push_back(t[i + 1]);
        const bool again = i + 2 < t.size() && t[i + 1] == best[1] && t[i + 2] == best[2];
        if (here && wrong != "skip" && !(wrong == "overlap" && again)) i++;
    }
    return merged;
}

void judge(Judge& j, decltype(task::bpe_merge)* bpe_merge) {
    j.hints = {{"ties", "among pairs of equal counts, the one with the smallest tokens is asked for, not the largest."},
               {"first-pair",
                "among pairs of equal counts, the one with the smallest tokens is asked for, not the first in the "
                "text."},
               {"overlap", "a token is used by two merges: after a merge, go on behind its second token."},
               {"first-only", "only the first occurrence is replaced; all are to be."},
               {"last", "the pair at the end of the text is not replaced."},
               {"skip", "after a merge its second token is looked at again; it is used up: go on behind it."},
               {"token", "the second token of the pair is still there: the new token replaces both."}};
    const std::vector<Tokens> texts = {{},           {7},          {1, 2},          {3, 3, 3}, {1, 2, 1, 2, 3, 1, 2},
                                       {5, 4, 4, 5}, {2, 9, 2, 1}, {8, 8, 8, 8, 8}, {}};
    for (size_t k = 0; k < texts.size(); k++) {
        Tokens text = texts[k];
        for (int i = 0; i < 300 && k + 1 == texts.size(); i++) text.push_back((int)j.random_below(5));
        std::string shown = "the text";
        for (int token : text) shown += " " + std::to_string(token);
        if (text.size() > 10) shown = std::to_string(text.size()) + " tokens";
        j.sizes("%s", text.empty() ? "no tokens" : shown.c_str());
        const Tokens merged = bpe_merge(text, 256);
        j.check({{"tokens", {(int64_t)merged.size()}, merged, std::vector<float>(text.begin(), text.end())}},
                [&](const Key& wrong) -> Arrays {
                    const Tokens expected = merged_with(text, 256, wrong);
                    return {std::vector<double>(expected.begin(), expected.end())};
                });
    }
}
