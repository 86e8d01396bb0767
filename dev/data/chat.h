// Conversations as text, by one template. A turn is
//
//     <|user|>
//     What is the capital of France?<|end|>
//     <|assistant|>
//     Paris.<|end|>
//
// with system, user or assistant as its role. None of this is a special token, so any vocabulary
// will do. The model learns what the assistant says, and the <|end|> behind it; all else it reads.
// A part of a conversation is encoded by itself, so no token has both what counts and what does
// not.
#pragma once
#include "llmc/base/json_text.h"

struct Turn {
    std::string role, content;
};
struct TextPart {
    std::string text;
    bool counts;  // in the loss
};

constexpr const char *END_OF_TURN = "<|end|>", *CHAT_TEMPLATE = "<|ROLE|>\\nTEXT<|end|>\\n";

// The parts of a conversation: what is said before each answer, with the answer's opening, and the
// answer.
inline std::vector<TextPart> parts_of(const std::vector<Turn>& turns) {
    std::vector<TextPart> parts;
    const auto add = [&](const std::string& text, bool counts) {
        if (parts.empty() || parts.back().counts != counts) parts.push_back({"", counts});
        parts.back().text += text;
    };
    for (const Turn& turn : turns) {
        add("<|" + turn.role + "|>\n", false);
        add(turn.content + END_OF_TURN + "\n", turn.role == "assistant");
    }
    return parts;
}

// Reads a turn, {"role": "user", "content": "..."}.
inline bool json_turn(JsonReader& json, Turn& turn) {
    bool role = false, content = false;
    const bool good = json_object(json, [&](const std::string& name) {
        if (name != "role" && name != "content") return json_value(json);
        std::string& text = name == "role" ? turn.role : turn.content;
        (name == "role" ? role : content) = true, text.clear();
        return json_string(json, &text);
    });
    if (!good) return false;
    if (!role || !content) return json.fail("a message without \"role\" and \"content\"");
    const bool known = turn.role == "system" || turn.role == "user" || turn.role == "assistant";
    return known || json.fail("a role that is not system, user or assistant");
}

// Reads a list of turns.
inline bool json_turns(JsonReader& json, std::vector<Turn>& turns) {
    turns.clear();
    if (json.peek() != '[') return json.fail("the field is no list of messages");
    return json_list(json, [&] { return json_turn(json, turns.emplace_back()); });
}
