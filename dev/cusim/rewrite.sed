# __shared__ has no counterpart in C++: such a variable belongs to the block, not to the thread. Lines stay lines.
#   extern __shared__ [attributes] T name[];     ->  the dynamic memory of the launch
#   __shared__ [alignment] T name[a][b]...;      ->  memory that the first thread of the block to come here creates
s/extern __shared__ (__align__\([0-9]+\) )?([A-Za-z_][A-Za-z0-9_]*) ([a-z_]+)\[\];/\2* \3 = (\2*)cusim::dynamic_shared_memory();/
s/__shared__ (__align__\([0-9]+\) )?([A-Za-z_][A-Za-z0-9_:<>]*) ([A-Za-z_][A-Za-z0-9_]*)((\[[^]]*\])*);/auto\& \3 = cusim::shared_variable<\2\4, __COUNTER__>("\3");/
